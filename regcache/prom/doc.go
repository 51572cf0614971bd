// Package prom hands the figures of registration caches to Prometheus:
//
//	prometheus.MustRegister(prom.New(map[string]*regcache.Cache{"mlx5_0": cache}))
//
// Every number of regcache.Stats is a metric. What only grows is a counter
// holdfast_regcache_NAME_total, what is true now a gauge holdfast_regcache_NAME,
// with _bytes behind it if it is one; NAME is as in the JSON form of
// /debug/regcache. Each carries the label cache, the name under which the cache
// was given. Besides:
//
//	holdfast_regcache_used_once_total{cache, reason}    Regions not kept, by reason
//	holdfast_regcache_info{cache, backend, monitor}     always 1
//
// A limit that is not set is +Inf. The numbers of one cache are of one moment,
// those of several are not.
//
// A scrape asks each cache for its Stats once, which looks at every Region and
// holds the cache's lock meanwhile (regcache.Cache.Stats says for how long). A
// Collector has no state of its own and may be used by any number of goroutines,
// also after its caches were closed.
//
// It is a module of its own, so that who embeds the cache does not pull
// Prometheus in.
package prom
