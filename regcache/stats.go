package regcache

import "example.com/holdfast/hca"

// Stats is what a cache did and holds. Counts begin at New and are exact; those
// of hits are kept in the word that a hit changes anyway, so that counting
// costs it nothing.
type Stats struct {
	Backend string // what registers
	Monitor string // what tells that memory goes away

	Hits     uint64 // Gets answered from the index
	SlowHits uint64 // of these, those that had to help with events first, or had joined a miss
	Misses   uint64 // Gets that registered

	Registrations    uint64 // that the backend made
	Deregistrations  uint64 // that it took back
	Failures         uint64 // Gets whose registration failed for good
	JoinedErrors     uint64 // Gets that got the error of a registration they had joined
	Retries          uint64 // registrations tried again after something was given back
	Redone           uint64 // registrations made again because an event had touched the range
	DeregisterErrors uint64 // deregistrations that failed: leaked for good

	Evictions     uint64 // Regions given up for a limit
	Invalidations uint64 // Regions whose memory went away
	Revocations   uint64 // Regions deregistered although held, because they were exported so
	Replaced      uint64 // Regions that a better one made superfluous

	Merges uint64 // registrations that took the place of a run of neighbours
	Sweeps uint64 // comparisons with what is mapped
	Swept  uint64 // Regions they dropped

	UsedOnce [hca.NumUnkept]uint64 // Regions not kept, by reason

	Events     uint64 // that were applied
	EventsLost uint64 // of these, those that said that some were lost

	Regions     int    // in the index now
	Registered  int    // registrations now, those in use once and those dying too
	InUseOnce   int    // Regions in use that are out of the index
	BytesPinned uint64 // in all registrations now
	BytesDead   uint64 // of these, those of Regions that are out of look-up for ever but not deregistered yet
	MaxRegions  int    // the limits
	MaxBytes    uint64
}

// counts are the counters behind Stats, guarded by Cache.mu.
type counts struct {
	hits, slowHits, misses                                      uint64
	registrations, deregistrations, failures, joinedErrors      uint64
	retries, redone, deregisterErrors, evictions, invalidations uint64
	revocations, replaced, merges, events, lost, sweeps, swept  uint64
	usedOnce                                                    [hca.NumUnkept]uint64
}

// Stats tells what the cache did and holds now. It looks at every Region and
// holds the cache's lock meanwhile: about a millisecond for 65536.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := &c.count
	s := Stats{
		Backend: c.info.Name, Monitor: "none: only Go heap given to GetBytes is kept",
		Hits: n.hits, SlowHits: n.slowHits, Misses: n.misses,
		Registrations: n.registrations, Deregistrations: n.deregistrations, Failures: n.failures,
		JoinedErrors: n.joinedErrors, Retries: n.retries, Redone: n.redone, DeregisterErrors: n.deregisterErrors,
		Revocations: n.revocations, Evictions: n.evictions, Invalidations: n.invalidations, Replaced: n.replaced, UsedOnce: n.usedOnce,
		Merges: n.merges, Sweeps: n.sweeps, Swept: n.swept,
		Events: n.events, EventsLost: n.lost,
		Regions: c.index.regions, Registered: c.usage.regions, InUseOnce: len(c.loose),
		BytesPinned: c.usage.bytes, BytesDead: c.usage.deadB, MaxRegions: c.cfg.MaxRegions, MaxBytes: c.cfg.MaxBytes,
	}
	switch {
	case c.info.Follows:
		s.Monitor = "none needed: registrations follow the address space"
	case c.monitor != nil:
		s.Monitor = c.monitor.String()
	}
	for _, r := range c.index.all(nil) {
		s.Hits += hitsOf(r.state.Load())
	}
	for r := range c.loose {
		s.Hits += hitsOf(r.state.Load())
	}
	return s
}
