// Package source says what a kernel source is: something that sees this
// process lose memory, whoever takes it away, and tells a monitor. Package
// intercept has one on userfaultfd, package intercept/bpf one on programs
// inside the kernel.
package source

import (
	"sync/atomic"

	"example.com/holdfast/hca"
)

// Events is the ring in which a source puts its events, for any number of
// readers, each with a position of its own. Neither method waits, locks or
// allocates.
type Events interface {
	// Done is the position after the last event that can be read. All events
	// that a settled value of the counter counts are below it.
	Done() uint64
	// At reads the event at a position below Done, and the count of the
	// counter when the source took it. It answers false if the event is lost,
	// because the writers have come round.
	At(pos uint64) (ev hca.Event, stamp uint64, ok bool)
}

// Source is a kernel source, started and not stopped. Every method but Stop
// may be called by any number of goroutines at once.
type Source interface {
	Events() Events

	// Watch answers as regcache.Monitor.Watch does for memory that is not
	// known to be owned; lo and hi are whole pages.
	Watch(lo, hi uint64) hca.Watch
	// Kind says without watching what Watch would find known already.
	Kind(lo, hi uint64) hca.MemKind
	// UnderWay is the probe of the domains that Watch answered, never 0.
	UnderWay(domains uint32) bool

	// Exact reports whether every end of memory is announced before it comes
	// and settled after. Memory that was mapped through the monitor then needs
	// no contract: it is looked after like any other.
	Exact() bool

	// CatchUp applies events to what the source remembers. It is called after
	// events became visible.
	CatchUp()
	// Stop ends it. Events and the counter can be read until nobody holds the
	// monitor any more.
	Stop()

	Counts() Counts
	String() string
}

// Counts is what a source did.
type Counts struct {
	Unmaps, Remaps, Discards uint64
	Others                   uint64 // events of other causes
	Reads                    uint64
	Changed                  uint64
	Known, Taints            int
}

// Parts is what a package makes a monitor of.
type Parts struct {
	// Counter is the word that the source counts in, from now on.
	Counter *atomic.Uint64
	Source  Source
	// Start lets the source ring the bell after events became visible. The
	// bell neither waits nor allocates.
	Start func(bell func())
	// Try has the source prove itself with memory of its own: it calls expect
	// with what it does, and which event must have come of it.
	Try func(expect Expect) error
}

// Expect runs do and insists that an event of the cause came that touches r.
// The range is asked for after do has run.
type Expect func(do func() error, r func() hca.Range, cause hca.Cause) error
