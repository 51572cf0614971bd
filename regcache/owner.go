package regcache

import "example.com/holdfast/hca"

// What the owner of the memory, or of the process, can ask of the cache.

// Trim deregisters idle Regions, oldest first, until at least the given number
// of pinned bytes is given back or nothing idle is left, and says how many
// bytes it was. Regions in use stay. Under on-demand paging nothing is pinned, and
// nothing is done.
func (c *Cache) Trim(bytes uint64) uint64 {
	if c.info.Follows {
		return 0
	}
	c.mu.Lock()
	var victims []*Region
	freed := uint64(0)
	for freed < bytes {
		r := c.evictLocked()
		if r == nil {
			break
		}
		freed += r.pinned()
		victims = append(victims, r)
	}
	c.mu.Unlock()
	c.deregister(victims)
	return freed
}

// Flush deregisters everything that nobody uses, and says how many Regions
// that were, those included that waited for the reaper. When it returns they are
// deregistered; what the reaper is at work on may take a moment longer.
func (c *Cache) Flush() int {
	c.mu.Lock()
	victims := c.takeDeadLocked()
	for r := c.evictLocked(); r != nil; r = c.evictLocked() {
		victims = append(victims, r)
	}
	c.mu.Unlock()
	c.deregister(victims)
	return len(victims)
}

// Invalidate takes every Region that touches g out of look-up, held memory and
// on-demand registrations included, and marks registrations under way that
// touch it. It is for an owner who is about to give the memory to somebody else
// or wants it back from the cache: what was kept alive is let go.
//
// When it returns no Get answers with any of them; those that nobody used are
// deregistered, the others will be at their last Release. It answers how many
// those are.
func (c *Cache) Invalidate(g hca.Range) (inUse int) {
	if !g.Valid() {
		return 0
	}
	c.mu.Lock()
	c.count.events++
	c.markFlightsLocked(g, true)
	c.scratch = c.index.overlapping(g, c.scratch[:0])
	for _, r := range c.scratch {
		c.count.invalidations++
		r.cold.end = endOwner
		if c.log.debug {
			c.noteLocked("invalidated by its owner", r.Range())
		}
		if !c.removeLocked(r) {
			inUse++
		}
	}
	clear(c.scratch)
	victims := c.takeDeadLocked()
	c.mu.Unlock()
	c.deregister(victims)
	return inUse
}
