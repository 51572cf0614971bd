package regcache

// recency is the order in which kept Regions were last used, oldest first, as
// far as it is known: a list that runs through the Regions themselves, so that
// it costs 16 bytes a Region and no allocation.
//
// A hit must not take a lock to say that it happened. It clears the Region's
// cold bit, if it is set, and that is all. Whoever is about to evict the oldest
// looks at the bit first: a Region that was hit since it was last looked at goes
// to the young end, cold again, and has its second chance. So a Region that is
// hit all the time costs its hits nothing, and nothing is done for the order as
// long as nothing has to go.
//
// A Region found in use when something has to be evicted is parked: out of the
// list, until the Release that makes it idle brings it back.
//
// All of it is guarded by Cache.mu.
type recency struct {
	// The list goes from cold part to cold part, so that a miss that puts a Region
	// in beside another does not look at that one's line, which hits write.
	oldest, youngest *cold
}

// add puts r, which is not in the list, at the young end.
func (q *recency) add(r *Region) {
	c := r.cold
	c.older = q.youngest
	if q.youngest == nil {
		q.oldest = c
	} else {
		q.youngest.younger = c
	}
	q.youngest = c
}

// has reports whether r is in the list.
func (q *recency) has(r *Region) bool { return r.cold.older != nil || q.oldest == r.cold }

// remove takes r out, if it is in the list.
func (q *recency) remove(r *Region) {
	if !q.has(r) {
		return
	}
	c := r.cold
	if c.older == nil {
		q.oldest = c.younger
	} else {
		c.older.younger = c.younger
	}
	if c.younger == nil {
		q.youngest = c.older
	} else {
		c.younger.older = c.older
	}
	c.older, c.younger = nil, nil
}

// refresh moves r to the young end, if it is in the list.
func (q *recency) refresh(r *Region) {
	if r.cold != q.youngest && q.has(r) {
		q.remove(r)
		q.add(r)
	}
}

// touch is what a hit does that finds the Region cold.
func (r *Region) touch() { r.state.And(^stCold) }

// warm reports whether r was hit since it was last looked at.
func (r *Region) warm() bool { return r.state.Load()&stCold == 0 }

// lookedAtLocked makes r the youngest and cold.
func (c *Cache) lookedAtLocked(r *Region) {
	r.state.Or(stCold)
	r.cold.used = c.clock()
	c.recency.refresh(r)
}

// orderLocked looks at every Region in the list, for Snapshot. Cache.mu is held.
func (c *Cache) orderLocked() {
	last := c.recency.youngest
	for at := c.recency.oldest; at != nil; {
		next := at.younger
		if at.of.warm() {
			c.lookedAtLocked(at.of)
		}
		if at == last {
			return
		}
		at = next
	}
}

// maxChances is how many Regions may be given a second chance before one that
// was hit since is evicted all the same: the one that was looked at longest ago.
// It bounds how long an eviction holds the lock.
const maxChances = 1 << 12

// oldestIdleLocked takes the idle Region that was used longest ago out of the
// index, dead and claimed; nil if none is idle. Cache.mu is held.
func (c *Cache) oldestIdleLocked() *Region {
	for looks := 0; c.recency.oldest != nil; looks++ {
		if r := c.lookAtOldestLocked(looks < maxChances); r != nil {
			return r
		}
	}
	return nil
}

// lookAtOldestLocked looks at the oldest Region in the list. If it is idle it is
// taken out of the index, dead and claimed, and answered. If it is in use it is
// parked, and if it was hit since it was last looked at and chances are given it has
// its second: then the answer is nil, and another is the oldest. Cache.mu is held.
func (c *Cache) lookAtOldestLocked(chance bool) *Region {
	r := c.recency.oldest.of
	if chance && r.warm() {
		c.lookedAtLocked(r)
		return nil
	}
	c.recency.remove(r)
	if r.killIdle() {
		r.cold.end = endEvicted
		c.unpublishLocked(r)
		return r
	}
	// In use. Its last Release sees parked; one that came before the bit
	// was set did not, so look again.
	if w := r.state.Or(stParked); w&stRefs == 0 {
		c.unparkLocked(r)
	}
	return nil
}

// unpark brings a Region back that the last Release found parked, and sees to
// it that limits hold for it now that it is idle.
func (c *Cache) unpark(r *Region) {
	c.mu.Lock()
	c.unparkLocked(r)
	var victims []*Region
	if c.overLocked() {
		victims = c.makeRoomLocked(0, 0)
	}
	c.mu.Unlock()
	c.deregister(victims)
}

func (c *Cache) unparkLocked(r *Region) {
	if r.state.And(^stParked)&stParked != 0 && r.cold.inIndex {
		r.cold.used = c.clock()
		c.recency.add(r)
	}
}
