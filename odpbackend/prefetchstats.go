package odpbackend

import "fmt"

// counts is what a Prefetcher counts, under its lock.
type counts struct {
	requests, warm, done, failed, flushed uint64
	dropped, merged, advises, retries     uint64
}

// PrefetchStats is what a Prefetcher did since it was made. Read by Stats at
// one moment, the sums hold exactly:
//
//	Requests    = Warm + Done + Failed + Flushed + Outstanding
//	WarmedPages = UsefulPages + UselessPages + UnusedPages
type PrefetchStats struct {
	Requests uint64 // that Post took
	Warm     uint64 // of those: complete without a call of the device, all their pages were warm
	Done     uint64 // complete after a call
	Failed   uint64 // complete with what the device said
	Flushed  uint64 // complete without having been tried
	Dropped  uint64 // that Post did not take: no room

	Merged  uint64 // requests that were put to a job that waited
	Advises uint64 // calls of the device that succeeded
	Retries uint64 // calls made again after ErrAgain, or because the device's queue was full

	// WarmedPages became warm by a call. A page is useful once Used is told of
	// it, and useless if it is forgotten before: for its age, because the
	// memory went away, or because its registration was exchanged for another.
	WarmedPages  uint64
	UsefulPages  uint64
	UselessPages uint64

	// Now.
	Outstanding      int    // requests posted and not complete
	OutstandingBytes uint64 // in those
	InFlight         int    // calls under way
	WarmPages        int    // remembered
	UnusedPages      int    // of those: not used yet
}

// Stats reads the counts.
func (p *Prefetcher) Stats() PrefetchStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readFeedsLocked()
	c, w := p.mu.count, p.mu.warm
	return PrefetchStats{
		Requests: c.requests, Warm: c.warm, Done: c.done, Failed: c.failed, Flushed: c.flushed, Dropped: c.dropped,
		Merged: c.merged, Advises: c.advises, Retries: c.retries,
		WarmedPages: w.warmed, UsefulPages: w.useful, UselessPages: w.useless,
		Outstanding: p.mu.requests, OutstandingBytes: p.mu.bytes, InFlight: p.mu.inFlight,
		WarmPages: w.pages, UnusedPages: w.fresh,
	}
}

// String says in a line what it did.
func (s PrefetchStats) String() string {
	return fmt.Sprintf("%d requests: %d warm already, %d done, %d failed, %d flushed, %d outstanding; %d dropped; "+
		"%d calls and %d tries more; %d pages warmed: %d useful, %d useless, %d unused",
		s.Requests, s.Warm, s.Done, s.Failed, s.Flushed, s.Outstanding, s.Dropped,
		s.Advises, s.Retries, s.WarmedPages, s.UsefulPages, s.UselessPages, s.UnusedPages)
}
