package hcasim

import (
	"sync/atomic"

	"example.com/holdfast/hca"
)

// counters are what Counters reads. Those that senders write and those that
// receivers write stand apart by a cache line.
type counters struct {
	sends, writes, reads, atomics, bytes, rnrNaks, errors atomic.Uint64
	_                                                     [64]byte
	recvs                                                 atomic.Uint64
	_                                                     [64]byte
	registrations, deregistrations, pinnedNow             atomic.Uint64
	prefetches, prefetchPages                             atomic.Uint64
}

// Counters tells what the device did since it was opened.
func (d *Device) Counters() hca.Counters {
	c := &d.count
	return hca.Counters{
		Registrations:   c.registrations.Load(),
		Deregistrations: c.deregistrations.Load(),
		PinnedNow:       c.pinnedNow.Load(),
		Sends:           c.sends.Load(),
		Recvs:           c.recvs.Load(),
		Writes:          c.writes.Load(),
		Reads:           c.reads.Load(),
		Atomics:         c.atomics.Load(),
		Bytes:           c.bytes.Load(),
		RNRNaks:         c.rnrNaks.Load(),
		Prefetches:      c.prefetches.Load(),
		PrefetchPages:   c.prefetchPages.Load(),
		Errors:          c.errors.Load(),
	}
}
