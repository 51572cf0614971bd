// Package reader runs the thread that takes events out of userfaultfd
// descriptors. The thread is C: see reader.c for why it must be.
//
// Life: [Start] with open descriptors, which then belong to the thread; Stop
// ends it and closes them. In between it is only seen through the counter, the
// ring and the statistics it writes.
package reader

import (
	"sync/atomic"

	"example.com/holdfast/intercept/internal/ring"
)

// Shared is what the thread writes: all of it is Go memory, which Start keeps
// in place until Stop has returned.
type Shared struct {
	// Counter is raised by one before events are taken, and by the number of
	// events times hca.CounterStep, less one, after they are in the ring.
	Counter *atomic.Uint64
	Ring    *ring.Ring
	Stats   *Stats
	// Rung is set by the thread when it writes to wake, which it does only if
	// it was 0. Whoever sets it back looks for events afterwards.
	Rung *atomic.Uint64
}

// Stats is written by the thread alone; the order is that of enum hf_stat.
type Stats struct {
	Reads    atomic.Uint64 // times events were taken
	Unmaps   atomic.Uint64
	Remaps   atomic.Uint64
	Discards atomic.Uint64
	Others   atomic.Uint64 // messages that nobody asked for
	Fault    atomic.Uint64 // errno that ended the thread; 0 while it runs
}

// atomicWord is what C sees as a uint64_t.
type atomicWord = atomic.Uint64
