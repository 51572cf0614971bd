package regcache

import (
	"math"
	"time"
)

// recency is the order in which kept Regions were last used, oldest first, as
// far as it is known: a list that runs through the Regions themselves, so that
// it costs 16 bytes a Region and no allocation.
//
// A hit must not take a lock to say that it happened. It clears the Region's
// cold bit, if it is set, and the one hit that clears it puts the Region on the
// cache's touched list, without a lock. Whoever next needs the order replays
// the list: oldest touch first, each moves its Region to the young end and makes
// it cold again. So the order is that of the first hits since the last replay,
// and a Region that is hit all the time costs its hits nothing.
//
// A Region found in use when something has to be evicted is parked: out of the
// list, until the Release that makes it idle brings it back.
//
// All of it is guarded by Cache.mu.
type recency struct {
	oldest, youngest *Region
}

// add puts r, which is not in the list, at the young end.
func (q *recency) add(r *Region) {
	r.cold.older = q.youngest
	if q.youngest == nil {
		q.oldest = r
	} else {
		q.youngest.cold.younger = r
	}
	q.youngest = r
}

// has reports whether r is in the list.
func (q *recency) has(r *Region) bool { return r.cold.older != nil || q.oldest == r }

// remove takes r out, if it is in the list.
func (q *recency) remove(r *Region) {
	if !q.has(r) {
		return
	}
	c := r.cold
	if c.older == nil {
		q.oldest = c.younger
	} else {
		c.older.cold.younger = c.younger
	}
	if c.younger == nil {
		q.youngest = c.older
	} else {
		c.younger.cold.older = c.older
	}
	c.older, c.younger = nil, nil
}

// refresh moves r to the young end, if it is in the list.
func (q *recency) refresh(r *Region) {
	if r != q.youngest && q.has(r) {
		q.remove(r)
		q.add(r)
	}
}

// touch puts r on the touched list if the caller is the one who made it warm.
func (c *Cache) touch(r *Region) {
	if r.state.And(^stCold)&stCold == 0 {
		return
	}
	for {
		head := c.touched.Load()
		r.cold.next = head
		if c.touched.CompareAndSwap(head, r) {
			return
		}
	}
}

// replayLocked brings the order up to date. Cache.mu is held.
func (c *Cache) replayLocked() {
	var oldest *Region
	for r := c.touched.Swap(nil); r != nil; {
		next := r.cold.next
		r.cold.next = oldest
		oldest, r = r, next
	}
	if oldest == nil {
		return
	}
	now := c.clock()
	for r := oldest; r != nil; {
		next := r.cold.next
		r.cold.used = now
		r.cold.next = nil
		c.recency.refresh(r)
		r.state.Or(stCold) // from here on it may be on the new list
		r = next
	}
}

// oldestIdleLocked takes the idle Region that was used longest ago out of the
// index, dead and claimed; nil if none is idle. Regions in use are parked on
// the way. Cache.mu is held, and the order has been replayed.
func (c *Cache) oldestIdleLocked() *Region { return c.idleLocked(math.MaxInt64) }

// idleLocked is oldestIdleLocked for Regions last used before a moment.
func (c *Cache) idleLocked(before time.Duration) *Region {
	for {
		r := c.recency.oldest
		if r == nil || r.cold.used >= before {
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
	}
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
