package regcache

import (
	"fmt"
	"unsafe"

	"example.com/holdfast/hca"
)

// View is a front of the cache for one endpoint: it holds on to the few Regions
// that the endpoint used last, so that getting one of these again takes no locked
// instruction and touches nothing that others write. It is never stale: what it
// answers with has been checked as Get checks it.
//
// A View is used by one goroutine at a time. What it holds is in use as far as
// the cache is concerned, and not evicted; when the cache needs room it asks
// Views to let go of what their endpoint does not use, and each does at its next
// call. So an endpoint that goes to sleep for long should call Drop.
//
// Regions from View.Get go back by View.Release, not by Region.Release.
type View struct {
	c      *Cache
	name   string
	last   int    // slot of the last hit
	recall uint64 // the cache's recall count that was heeded
	hits   uint64 // not told to the cache yet
	closed bool
	slots  [viewSlots]viewSlot
}

// viewSlots is how many Regions a View holds: as DPDK's per-queue cache has (its
// MLX5_MR_CACHE_N is 8), few enough to look at one after the other.
const viewSlots = 8

// viewSlot is a Region that the View has one reference to, or nothing.
type viewSlot struct {
	start, end uint64 // empty if end is 0
	access     hca.Access
	out        int32 // how often the endpoint has it
	r          *Region
}

// NewView makes a View. The name is for Close of the cache, which refuses and
// names them while Views are open. Errors: hca.ErrClosed.
func (c *Cache) NewView(name string) (*View, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != cacheOpen {
		return nil, &hca.OpError{Op: "new view", Device: c.info.Name, Err: hca.ErrClosed}
	}
	v := &View{c: c, name: name, recall: c.recall.Load()}
	c.views[v] = struct{}{}
	return v, nil
}

// Get is Cache.Get; errors the same, and hca.ErrClosed after Close. The Region is
// the endpoint's until View.Release.
func (v *View) Get(g hca.Range, a hca.Access) (*Region, error) {
	return v.lookUp(g.Addr, g.Len, a, nil)
}

// GetBytes is Cache.GetBytes; errors the same. The Region is the endpoint's until
// View.Release.
func (v *View) GetBytes(b []byte, a hca.Access) (*Region, error) {
	return v.lookUp(0, uint64(len(b)), a, unsafe.Pointer(unsafe.SliceData(b)))
}

// lookUp tries the slots, that of the last hit first.
//
// The argument is that of hit.go with step 4 made easier: the View has a
// reference already, so the Region cannot be deregistered, and it is enough to
// see, after step 2, that it is not dead. For owned memory that makes step 6
// superfluous: at the moment when the counter was loaded, which is within the
// call, no event had been counted that was not applied when the Region was seen
// alive, and owned memory does not go before its event is counted.
func (v *View) lookUp(addr, n uint64, a hca.Access, p unsafe.Pointer) (*Region, error) {
	c := v.c
	addr |= uint64(uintptr(p))
	end := addr + n
	i := v.last
	for range viewSlots {
		s := &v.slots[i&(viewSlots-1)]
		if s.start <= addr && end <= s.end && s.access&a == a {
			r := s.r
			if end > addr && v.recall == c.recall.Load() &&
				(r.check == checkNothing || r.check == checkCounter && c.words[r.word&(maxWords-1)].settled()) && r.state.Load()&stDead == 0 {
				v.last = i
				s.out++
				v.hits++
				return r, nil
			}
			break
		}
		i++
	}
	return v.lookFurther(addr, n, a, p)
}

// lookFurther is what is left: foreign memory, Regions that died, and what is in
// no slot.
func (v *View) lookFurther(addr, n uint64, a hca.Access, p unsafe.Pointer) (*Region, error) {
	c := v.c
	if asked := c.recall.Load(); asked != v.recall {
		v.recall = asked
		v.Drop()
	}
	end := addr + n
	for i := range v.slots {
		s := &v.slots[i]
		if end <= addr || addr < s.start || end > s.end || s.access&a != a {
			continue
		}
		r := s.r
		quiet := r.check == checkNothing || c.omit == 0 && c.quiet(r)
		if r.state.Load()&stDead != 0 {
			v.empty(s)
			continue
		}
		if quiet {
			v.last = i
			s.out++
			v.hits++
			return r, nil
		}
	}
	if v.closed {
		return nil, &hca.OpError{Op: "get", Device: v.name, Range: hca.Range{Addr: addr, Len: n}, Detail: "the View was closed", Err: hca.ErrClosed}
	}
	r := c.hit(addr, end, a, maxProbes)
	if r == nil {
		v.Drop() // what this View holds must not be what there is no room for, nor keep neighbours from merging
		var err error
		if r, err = c.lookUp(addr, n, a, p); err != nil {
			return nil, err
		}
	} else {
		r.traceGet()
	}
	v.keep(r)
	return r, nil
}

// keep puts a Region that the cache has just given into a slot, in the place of
// one that the endpoint does not have. A Region that is used once is not kept.
func (v *View) keep(r *Region) {
	if r.state.Load()&stDead != 0 {
		return
	}
	for i := range v.slots {
		i := (v.last + 1 + i) & (viewSlots - 1)
		s := &v.slots[i]
		if s.r != nil && s.out > 0 {
			continue
		}
		v.empty(s)
		*s = viewSlot{start: r.start, end: r.end, access: r.access, out: 1, r: r}
		v.last = i
		return
	}
}

// empty lets go of what is in the slot; as long as the endpoint has it, only of
// its place in look-up.
func (v *View) empty(s *viewSlot) {
	s.start, s.end = 0, 0
	if s.r != nil && s.out == 0 {
		s.r.Release()
		s.r = nil
	}
}

// Release gives back a Region from this View's Get.
func (v *View) Release(r *Region) {
	i := v.last
	for range viewSlots {
		s := &v.slots[i&(viewSlots-1)]
		if s.r == r && s.out > 0 {
			if s.out--; r.state.Load()&stDead != 0 || s.end == 0 {
				v.empty(s)
			}
			return
		}
		i++
	}
	r.Release() // it was not kept
}

// Drop lets go of everything that the endpoint does not have, and adds the hits
// to the cache's Stats.
func (v *View) Drop() {
	for i := range v.slots {
		if s := &v.slots[i]; s.out == 0 {
			v.empty(s)
		}
	}
	v.c.mu.Lock()
	v.c.count.hits += v.hits
	v.c.mu.Unlock()
	v.hits = 0
}

// Close ends the View. hca.ErrBusy, with the count, while the endpoint has
// Regions; hca.ErrClosed the second time.
func (v *View) Close() error {
	out := 0
	for _, s := range v.slots {
		out += int(s.out)
	}
	if out > 0 {
		return &hca.OpError{Op: "close view", Device: v.name, Detail: fmt.Sprintf("%d Regions are out", out), Err: hca.ErrBusy, Hint: "release them first"}
	}
	if v.closed {
		return &hca.OpError{Op: "close view", Device: v.name, Err: hca.ErrClosed}
	}
	v.closed = true
	v.Drop()
	v.c.mu.Lock()
	defer v.c.mu.Unlock()
	delete(v.c.views, v)
	return nil
}

// recallLocked asks the Views to let go of what their endpoints do not have. It
// is a wish for room: nothing that is right depends on when they do. Cache.mu is
// held.
func (c *Cache) recallLocked() {
	if len(c.views) > 0 {
		c.recall.Add(1)
	}
}
