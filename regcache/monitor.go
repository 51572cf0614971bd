package regcache

import (
	"sync/atomic"

	"example.com/holdfast/hca"
)

// Monitor tells the cache when memory goes away. intercept.Monitor is the one
// that comes with the project; one Monitor serves any number of caches.
//
// # What it promises
//
// A source takes an event in, puts it where every feed finds it, and then
// raises the counter by hca.CounterStep; while it holds an event that no feed
// can see yet, the counter's low bits (hca.Unsettled) are not zero. For memory
// of kind hca.MemOwned the counter has been raised before the memory goes, and
// so has the one that Watch named, if it did (hca.Watch.Counter). For
// hca.MemForeign the counter may be raised later, but then from before the memory goes
// until the counter is raised UnderWay answers true for the memory's domains.
type Monitor interface {
	// Counter is the word that every hit reads: see hca.CounterStep. It is the
	// same for the life of the monitor.
	Counter() *atomic.Uint64

	// Subscribe opens a feed: all events from now on. wake is called after
	// events became visible, from any goroutine, often, and must not block.
	Subscribe(wake func()) (hca.Feed, error)

	// Watch sees to it that from some moment during the call on the end of the
	// memory in r is reported, for as long as its kind says, and that every
	// page of r was mapped and watched at such a moment. An event after that
	// moment may undo it. It takes microseconds. Memory that cannot be
	// watched is hca.MemUnknown, with the reason.
	Watch(r hca.Range) hca.Watch

	// UnderWay is the probe: false only if, at some moment during the call,
	// nothing that ends memory on one of the domains had begun without being
	// counted by the counter.
	UnderWay(domains uint32) bool

	// Exercise causes an event of the monitor's own, on memory of its own, the
	// way a program would, and returns the range. New uses it to see with the
	// cache's own eyes that events arrive.
	Exercise() (hca.Range, error)

	// String says in one line which source runs, what it sees and what not.
	String() string
}
