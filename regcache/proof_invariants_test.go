package regcache

import (
	"fmt"
	"math/bits"

	"example.com/holdfast/hca"
)

// settle applies every event and waits until nothing is left to deregister that
// nobody uses. No Get may be under way. (The test's own time limit bounds it.)
func settle(c *Cache) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == cacheClosed {
		return
	}
	c.applyLocked()
	c.wake()
	for c.usage.dying > 0 {
		c.gone.Wait()
	}
}

// invariants says what is wrong with the bookkeeping of a cache that nobody is
// using at this moment and that has settled; nil if nothing is. It looks at
// everything that the cache keeps twice and has to keep equal.
func invariants(c *Cache) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	fail := fmt.Errorf
	all := c.index.all(nil)
	if len(all) != c.index.regions {
		return fail("the index holds %d Regions and counts %d", len(all), c.index.regions)
	}
	var perClass [64]int
	var bytes, deadBytes uint64
	in := map[*Region]bool{}
	for _, r := range all {
		w := r.state.Load()
		switch {
		case in[r]:
			return fail("%v stands in the index twice", r.Range())
		case !r.cold.inIndex:
			return fail("%v is in the index and does not know", r.Range())
		case w&(stDead|stClaimed) != 0:
			return fail("%v is in the index and dead: state %#x", r.Range(), w)
		case c.index.find(r.start, r.end, r.access, 1<<30) == nil:
			return fail("%v is in the index and is not found", r.Range())
		}
		in[r] = true
		perClass[classOf(r.end-r.start)]++
		bytes += r.pinned()
		for _, g := range []hca.Range{r.Range(), {Addr: r.start, Len: 1}, {Addr: r.end - 1, Len: 1}} {
			found := false
			for _, o := range c.index.overlapping(g, nil) {
				found = found || o == r
			}
			if !found {
				return fail("%v is in the index and an event on %v does not find it", r.Range(), g)
			}
			found = false
			c.index.findAll(g, func(o *Region) bool { found = o == r; return !found })
			if !found {
				return fail("%v is in the index and not among those that cover %v", r.Range(), g)
			}
		}
	}
	for class, n := range perClass {
		if c.index.perClass[class] != n {
			return fail("class %d has %d Regions and counts %d", class, n, c.index.perClass[class])
		}
		if bit := c.index.classes.Load() >> class & 1; (bit == 1) != (n > 0) {
			return fail("class %d has %d Regions and its bit is %d", class, n, bit)
		}
	}
	if n := bits.OnesCount64(c.index.classes.Load()); n > 64 {
		return fail("%d classes", n)
	}
	t, used := c.index.table.Load(), 0
	for i := range t.entries {
		if t.entries[i].Load() != nil {
			used++
		}
	}
	if used != c.index.used || used*8 > len(t.entries)*5 {
		return fail("the table of %d has %d entries that are not empty and counts %d", len(t.entries), used, c.index.used)
	}
	if err := frontIsRight(&c.index, func(r *Region) bool { return in[r] }, false); err != nil {
		return err
	}

	listed := map[*Region]bool{}
	for at := c.recency.oldest; at != nil; at = at.younger {
		r := at.of
		if listed[r] = true; !in[r] {
			return fail("%v is in the recency list and not in the index", r.Range())
		}
	}
	for _, r := range all {
		if parked := r.state.Load()&stParked != 0; parked == listed[r] {
			return fail("%v: parked %v, in the recency list %v", r.Range(), parked, listed[r])
		} else if parked && r.state.Load()&stRefs == 0 {
			return fail("%v is parked and nobody uses it", r.Range())
		}
	}
	for r := range c.loose {
		w := r.state.Load()
		if in[r] || r.cold.inIndex || w&stDead == 0 || w&stClaimed != 0 || w&stRefs == 0 {
			return fail("%v is loose: in index %v, state %#x", r.Range(), in[r], w)
		}
		bytes += r.pinned()
		if r.cold.why == hca.KeptAllRight {
			deadBytes += r.pinned()
		}
	}
	switch {
	case len(c.dead) > 0 || c.usage.dying != 0:
		return fail("%d dead and %d dying after it settled", len(c.dead), c.usage.dying)
	case len(c.flying) > 0 || c.running != 0:
		return fail("%d registrations under way, %d Gets", len(c.flying), c.running)
	case c.usage.regions != len(all)+len(c.loose):
		return fail("%d registrations counted, %d kept and %d loose", c.usage.regions, len(all), len(c.loose))
	case c.usage.bytes != bytes:
		return fail("%d bytes counted, %d are pinned", c.usage.bytes, bytes)
	case c.usage.deadB != deadBytes:
		return fail("%d dead bytes counted, %d there are", c.usage.deadB, deadBytes)
	case len(all) > c.cfg.MaxRegions:
		return fail("%d Regions kept, the limit is %d", len(all), c.cfg.MaxRegions)
	case bytes-looseBytes(c) > c.cfg.MaxBytes:
		return fail("%d bytes kept, the limit is %d", bytes-looseBytes(c), c.cfg.MaxBytes)
	}
	n := &c.count
	if _, joined := c.backend.(*joint); joined {
		return nil // what one of several adapters would not undo counts as failed and was never registered
	}
	if n.registrations != n.deregistrations+n.deregisterErrors+uint64(c.usage.regions) {
		return fail("%d registrations, %d deregistrations, %d failed, %d left", n.registrations, n.deregistrations, n.deregisterErrors, c.usage.regions)
	}
	return nil
}

func looseBytes(c *Cache) (bytes uint64) {
	for r := range c.loose {
		bytes += r.pinned()
	}
	return bytes
}
