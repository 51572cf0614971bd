package regcache

import (
	"log/slog"

	"example.com/holdfast/hca"
)

// applyLocked applies every event that can be read to the index. Cache.mu is
// held. It allocates nothing but room for its scratch list, and calls neither
// the backend nor anything that waits.
//
// The words are read before the feed: the monitor puts events into the feed
// before it counts them, so once the feed is found empty everything that these
// values count has been applied, and those that are settled may be told to hits.
//
// However fast events come, one call applies no more than applyMost: then it is
// not finished, tells hits nothing, and the reaper goes on.
func (c *Cache) applyLocked() {
	const applyMost = 1 << 16
	if c.appliedLocked() {
		return
	}
	var counted [maxWords]uint64
	for i := range c.numWords {
		counted[i] = c.words[i].counter.Load()
	}
	for applied := 0; ; {
		n := c.feed.Next(c.events[:])
		if n == 0 {
			break
		}
		for _, e := range c.events[:n] {
			c.eventLocked(e)
		}
		if applied += n; applied >= applyMost {
			c.wake()
			return
		}
	}
	for i := range c.numWords {
		w, g := &c.words[i], counted[i]
		if g&hca.Unsettled != 0 && c.omit&omitParity != 0 {
			g &^= hca.Unsettled
		}
		if g&hca.Unsettled == 0 && w.applied.Load() != g {
			w.applied.Store(g)
		}
	}
}

// eventLocked takes every Region out of look-up that the event touches, and
// marks the registrations under way that it touches. Held memory and on-demand
// registrations have nothing to fear from it. Cache.mu is held.
func (c *Cache) eventLocked(e hca.Event) {
	c.count.events++
	if e.Cause == hca.CauseLost {
		c.count.lost++
		e.Range = hca.Whole
	}
	if e.Range.Empty() {
		return
	}
	c.markFlightsLocked(e.Range, false)
	c.scratch = c.index.overlapping(e.Range, c.scratch[:0])
	for _, r := range c.scratch {
		if r.cold.inIndex && r.check != checkNothing {
			c.count.invalidations++
			r.cold.end = endInvalid
			if c.log.debug {
				c.noteLocked("memory went away", r.Range(), slog.String("cause", e.Cause.String()), slog.String("event", e.Range.String()))
			}
			c.removeLocked(r)
		}
	}
	clear(c.scratch)
}

// markFlightsLocked marks the registrations under way that touch g, by an event
// or because the owner of the memory says so.
func (c *Cache) markFlightsLocked(g hca.Range, owner bool) {
	for _, f := range c.flying {
		if f.now.Overlaps(g) {
			f.touched, f.owner = true, f.owner || owner
		}
	}
}

// removeLocked takes r out of look-up for ever. If nobody uses it, it is handed
// to the reaper, and true is answered; otherwise the last Release deregisters it.
func (c *Cache) removeLocked(r *Region) bool {
	c.unpublishLocked(r)
	if r.kill() {
		c.buryLocked(r)
		return true
	}
	c.recallLocked() // a View may be all that holds it, and must not answer with it
	if c.revokeLocked(r) {
		return true
	}
	c.loose[r] = struct{}{}
	c.usage.deadB += r.pinned()
	return false
}

// unpublishLocked takes r out of the index and out of the recency list.
func (c *Cache) unpublishLocked(r *Region) {
	c.index.remove(r)
	c.recency.remove(r)
	r.cold.inIndex = false
	if len(c.listeners) > 0 {
		c.tellLocked(r)
	}
}

// buryLocked hands r, which the caller has claimed, to the reaper.
func (c *Cache) buryLocked(r *Region) {
	c.dieLocked(r)
	c.dead = append(c.dead, r)
	c.wake()
}

// dieLocked counts r, which the caller has claimed, as dying: nobody's Release
// is needed any more for it to go. Its hits are final.
func (c *Cache) dieLocked(r *Region) {
	if _, was := c.loose[r]; was {
		delete(c.loose, r)
		if r.cold.why == hca.KeptAllRight {
			c.usage.deadB -= r.pinned()
		}
	}
	c.usage.dying++
	c.usage.deadB += r.pinned()
	c.count.hits += r.cold.hits
}

// retire deregisters r, which the caller claimed when he gave the last
// reference back.
func (c *Cache) retire(r *Region) {
	c.mu.Lock()
	c.dieLocked(r)
	c.mu.Unlock()
	c.deregister([]*Region{r})
}

// failedLocked remembers an error of a deregistration for Close. Cache.mu is held.
func (c *Cache) failedLocked(err error) {
	const most = 8
	if len(c.failed) < most {
		c.failed = append(c.failed, err)
	}
}

// deregister drops registrations of Regions that the caller has claimed.
// Cache.mu is not held.
func (c *Cache) deregister(victims []*Region) {
	for _, r := range victims {
		err := c.backend.Deregister(r.cold.mr)
		r.cold.keep = nil
		c.mu.Lock()
		if !r.cold.revoked { // else somebody still has it
			r.tracePoison()
		}
		c.revokedLocked(r, err)
		c.usage.regions--
		c.usage.bytes -= r.pinned()
		c.usage.dying--
		c.usage.deadB -= r.pinned()
		if err == nil {
			c.count.deregistrations++
			if c.log.debug {
				c.noteGoneLocked(r)
			}
		} else {
			c.count.deregisterErrors++
			c.failedLocked(err)
			c.noteErrorLocked("deregistration failed", r.Range(), err)
		}
		c.gone.Broadcast()
		c.mu.Unlock()
	}
}
