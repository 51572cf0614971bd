package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// report is what is printed in the end.
type report struct {
	options
	machine          machine
	all              []*contender
	hits, contention []job
}

// median of what f says of each round; of an even number the mean of the middle
// two. 0 of none.
func median(rounds []measurement, f func(measurement) float64) float64 {
	if len(rounds) == 0 {
		return 0
	}
	v := make([]float64, len(rounds))
	for i, m := range rounds {
		v[i] = f(m)
	}
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

func nsOf(m measurement) float64   { return m.ns }
func wallOf(m measurement) float64 { return m.wall }

func percentile(p float64) func(measurement) float64 {
	return func(m measurement) float64 { return float64(m.hist.ValueAtPercentile(p)) }
}

// measured are the contenders that have figures for any of jobs.
func (r *report) measured(jobs []job) (some []*contender) {
	for _, c := range r.all {
		if slices.ContainsFunc(jobs, func(j job) bool { return len(c.results[j.name()]) > 0 }) {
			some = append(some, c)
		}
	}
	return some
}

// first is the first peer among some, to which ratios are given; nil if none of
// them is a peer.
func first(some []*contender) *contender {
	for _, c := range some {
		if !c.ours {
			return c
		}
	}
	return nil
}

// in says a job in words.
func (j job) in() string {
	s := fmt.Sprintf("%d ranges, %d threads", j.regions, j.threads)
	if j.regions == 1 {
		s = strings.Replace(s, "ranges", "range", 1)
	}
	if j.threads == 1 {
		s = strings.TrimSuffix(s, "s")
	}
	switch {
	case j.apart:
		s += ", each its own"
	case j.threads > 1 && j.regions > 1:
		s += ", the same"
	}
	switch j.churn {
	case churnMix:
		s += ", churn"
	case churnSame:
		s += ", foreign churn on the same channel"
	case churnOther:
		s += ", foreign churn on another channel"
	}
	return s
}

// tables prints for people.
func (r *report) tables(w io.Writer) {
	fmt.Fprintf(w, "%v; load average %s before and %s after\n", r.machine, r.machine.loadBefore, r.machine.loadAfter)
	if some := r.measured(r.hits); len(some) > 0 {
		fmt.Fprintf(w, "\nNanoseconds of one thread's processor time per get and put of a cached range of 64 KiB: the median of %d rounds of %d", r.rounds, r.iters)
		peer := first(some)
		if peer != nil {
			fmt.Fprintf(w, ", and its ratio to %s's", peer.name)
		}
		fmt.Fprint(w, ".\n\n")
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprint(t, "\t")
		for _, c := range some {
			fmt.Fprintf(t, "%s\t\t", c.name)
		}
		fmt.Fprintln(t)
		for _, j := range r.hits {
			fmt.Fprintf(t, "%s\t", j.in())
			for _, c := range some {
				ns := median(c.results[j.name()], nsOf)
				switch {
				case ns == 0:
					fmt.Fprint(t, "-\t\t")
				case peer == nil || c == peer || len(peer.results[j.name()]) == 0:
					fmt.Fprintf(t, "%.1f\t\t", ns)
				default:
					fmt.Fprintf(t, "%.1f\t%.2fx\t", ns, ns/median(peer.results[j.name()], nsOf))
				}
			}
			fmt.Fprintln(t)
		}
		t.Flush()
		r.busy(w, some)
	}
	if some := r.measured(r.contention); len(some) > 0 {
		fmt.Fprintf(w, "\nNanoseconds of single gets and puts: the medians, over %d rounds, of percentiles of HDR histograms.\n"+
			"Each sample contains two readings of the clock, which are at least \"clock\" apart.\n\n", r.rounds)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "\twho\tp50\tp99\tp99.9\tclock\tsamples\tchurned\t")
		for _, j := range r.contention {
			for _, c := range some {
				rounds := c.results[j.name()]
				if len(rounds) == 0 {
					continue
				}
				fmt.Fprintf(t, "%s\t%s\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t\n", j.in(), c.name,
					median(rounds, percentile(50)), median(rounds, percentile(99)), median(rounds, percentile(99.9)),
					median(rounds, func(m measurement) float64 { return m.clock }),
					median(rounds, func(m measurement) float64 { return float64(total(m.hist)) }),
					median(rounds, func(m measurement) float64 { return float64(m.churned) }))
			}
		}
		t.Flush()
	}
	fmt.Fprintln(w)
	r.notes(w)
}

// busy says so if others had the processors while it was measured. The figures
// of one thread are processor time and bear that; two threads that seldom run at
// the same moment seldom wait for each other.
func (r *report) busy(w io.Writer, some []*contender) {
	var ratios []measurement
	for _, c := range some {
		for _, j := range r.hits {
			for _, m := range c.results[j.name()] {
				ratios = append(ratios, measurement{wall: m.wall / m.ns})
			}
		}
	}
	if by := median(ratios, wallOf); by > 1.2 {
		fmt.Fprintf(w, "\nThe machine was busy: on the clock it took %.1f times as long. Two threads then run at the same moment\n"+
			"less often than they would, and wait for each other less often: their figures flatter who has them wait.\n", by)
	}
}

func total(h *hdrhistogram.Histogram) int64 { return h.TotalCount() }

// notes says who the contenders are, and why those are missing that are.
func (r *report) notes(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range r.all {
		switch {
		case c.failed != nil:
			fmt.Fprintf(t, "%s\tFAILED: %v\n", c.name, c.failed)
		case c.absent != "" && len(c.results) > 0:
			fmt.Fprintf(t, "%s\t%s; some of it absent: %s\n", c.name, c.about, c.absent)
		case c.absent != "":
			fmt.Fprintf(t, "%s\tabsent: %s\n", c.name, c.absent)
		default:
			fmt.Fprintf(t, "%s\t%s\n", c.name, c.about)
		}
	}
	t.Flush()
}

// benchmarks prints in the format of Go's benchmarks, one line a round.
func (r *report) benchmarks(w io.Writer) {
	fmt.Fprintf(w, "goos: %s\ngoarch: %s\npkg: example.com/holdfast/bench/peers\ncpu: %s\nload: %s to %s\n",
		runtime.GOOS, runtime.GOARCH, r.machine.cpu, r.machine.loadBefore, r.machine.loadAfter)
	for _, j := range r.hits {
		for _, c := range r.measured([]job{j}) {
			for _, m := range c.results[j.name()] {
				fmt.Fprintf(w, "BenchmarkHit/%s/who=%s\t%d\t%.3f ns/op\t%.3f wall-ns/op\n", j.name(), c.name, m.iters, m.ns, m.wall)
			}
		}
	}
	for _, j := range r.contention {
		for _, c := range r.measured([]job{j}) {
			for _, m := range c.results[j.name()] {
				fmt.Fprintf(w, "BenchmarkContention/%s/who=%s\t%d\t%d p50-ns\t%d p99-ns\t%d p99.9-ns\n", j.name(), c.name, m.hist.TotalCount(),
					m.hist.ValueAtPercentile(50), m.hist.ValueAtPercentile(99), m.hist.ValueAtPercentile(99.9))
			}
		}
	}
}
