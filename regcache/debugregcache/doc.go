// Package debugregcache shows what registration caches hold and do while the
// program runs, the way net/http/pprof shows profiles:
//
//	http.Handle("/debug/regcache", debugregcache.Handler(
//		debugregcache.Named{Name: "mlx5_0", Cache: cache, Monitor: mon}))
//
// A browser gets a page that keeps itself up to date: totals and rates, limits,
// sizes and ages, the busiest and the oldest Regions and those that go next, why
// memory was not kept and what to do about it, and what the monitor sees. Nothing
// on it comes from elsewhere, and without scripts it is the same page standing
// still.
//
// # Forms
//
// The query chooses another form and more detail:
//
//	?format=text    plain text, for a terminal
//	?format=json    for programs; see below
//	?top=N          so many Regions in each list of Regions; 10 if not given, 1000 at most
//	?regions=all    text and JSON: all Regions as well, by address
//
// The JSON form has stable names: fields may be added, and none changes its
// meaning or goes while "version" stays 1. Durations are seconds, sizes bytes,
// addresses hexadecimal strings, and what has no limit is null. "counts" and
// "now" are the numbers of regcache.Stats; those in "counts" only grow.
//
// # expvar
//
// [Var] is the same without the Regions, for the program to publish:
//
//	expvar.Publish("regcache", debugregcache.Var(debugregcache.Named{Name: "mlx5_0", Cache: cache}))
//
// This package does not import expvar, because that puts a handler into
// http.DefaultServeMux.
//
// # Cost and concurrency
//
// Everything here may be called at any time by any number of goroutines, also
// after the cache was closed. A report holds each cache's lock twice for as long
// as it takes to look at every Region (see Cache.Snapshot and Cache.Stats): hits
// go on meanwhile, misses wait. One report of a Handler is made at a time, and an
// open page asks for one a second at most, and so seldom that making them takes
// at most a twentieth of a processor.
//
// The addresses on the page help whoever attacks the process: serve it where
// /debug/pprof would be served.
//
// A package of its own, so that who embeds the cache need not link net/http.
package debugregcache
