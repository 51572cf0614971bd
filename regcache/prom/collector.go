package prom

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/holdfast/hca"
	"example.com/holdfast/regcache"
	"example.com/holdfast/regcache/internal/figures"
)

const prefix = "holdfast_regcache_"

// Collector is a prometheus.Collector. New makes one.
type Collector struct {
	names    []string // of the caches, sorted
	caches   map[string]*regcache.Cache
	figures  []metric
	usedOnce *prometheus.Desc
	info     *prometheus.Desc
}

// metric is a number of Stats with its description.
type metric struct {
	figures.Figure
	desc *prometheus.Desc
	kind prometheus.ValueType
}

// New makes a Collector of caches, each under the name that tells it from the
// others. It panics if a cache is nil.
func New(caches map[string]*regcache.Cache) *Collector {
	c := &Collector{
		names:    slices.Sorted(maps.Keys(caches)),
		caches:   maps.Clone(caches),
		usedOnce: prometheus.NewDesc(prefix+"used_once_total", "Regions that were used once and not kept, by reason.", []string{"cache", "reason"}, nil),
		info:     prometheus.NewDesc(prefix+"info", "What registers and what tells that memory goes away.", []string{"cache", "backend", "monitor"}, nil),
	}
	for _, name := range c.names {
		if caches[name] == nil {
			panic(fmt.Sprintf("prom: New: cache %q is nil", name))
		}
	}
	for _, f := range figures.All() {
		m := metric{Figure: f, kind: prometheus.GaugeValue}
		name := prefix + f.Name
		if f.Unit != "" {
			name += "_" + f.Unit
		}
		if f.Count {
			m.kind = prometheus.CounterValue
			name += "_total"
		}
		m.desc = prometheus.NewDesc(name, f.Help+".", []string{"cache"}, nil)
		c.figures = append(c.figures, m)
	}
	return c
}

// Describe sends every description there is.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, m := range c.figures {
		out <- m.desc
	}
	out <- c.usedOnce
	out <- c.info
}

// Collect asks every cache for its figures.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	for _, name := range c.names {
		s := c.caches[name].Stats()
		for _, m := range c.figures {
			out <- prometheus.MustNewConstMetric(m.desc, m.kind, float(m.Value(&s)), name)
		}
		for u := hca.KeptAllRight + 1; u < hca.NumUnkept; u++ {
			out <- prometheus.MustNewConstMetric(c.usedOnce, prometheus.CounterValue, float64(s.UsedOnce[u]), name, figures.Reason(u))
		}
		out <- prometheus.MustNewConstMetric(c.info, prometheus.GaugeValue, 1, name, s.Backend, s.Monitor)
	}
}

// float is n, or infinite if it stands for no limit.
func float(n uint64) float64 {
	if n == figures.Unlimited {
		return math.Inf(1)
	}
	return float64(n)
}
