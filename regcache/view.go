package regcache

import (
	"fmt"
	"sync/atomic"
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
// Regions from View.Get go back by View.Release, not by Region.Release. Giving back
// what was got last costs least; any other order is right too.
type View struct {
	// newest is the address of the Region of the last Get, or 0: then it was given
	// back, or is counted in its slot, or is in none. See lookUp.
	newest uint64
	hits   uint64         // not told to the cache yet
	recall uint64         // the cache's recall count when all slots were last looked through
	asked  *atomic.Uint64 // the cache's recall count; immutable
	last   uint32         // slot of the last Get; newest, if there is one, is in it
	closed bool
	c      *Cache        // immutable
	name   string        // immutable
	still  atomic.Uint64 // 0 for ever: what a slot has for a counter if no event matters to it
	moved  atomic.Uint64 // 1 for ever: what still never equals
	table  [viewPages]uint8
	slots  [viewSlots]viewSlot
}

// viewSlots is how many Regions a View holds: as DPDK's per-queue cache has (its
// MLX5_MR_CACHE_N is 8), few enough to look at one after the other.
const viewSlots = 8

// viewSlot is a Region that the View has one reference to, or nothing. All of it
// that a hit needs is copied here, in the order in which a hit needs it.
type viewSlot struct {
	start, end       uint64         // empty if end is 0
	lacks            hca.Access     // what the Region does not allow
	out              int32          // how often the endpoint has it, newest not counted
	counter, applied *atomic.Uint64 // equal: no event can have touched it that was not applied
	r                *Region
	_                [16]byte // to 64 bytes: the place of a slot is then a shift
}

// viewPages is the size of the table that says in which slot to look first, by the
// page of the address: the slot in which something there was found last. It may
// say anything: who finds nothing there looks through all slots.
const viewPages = 1 << 8

// viewPage is the entry of the table for an address. Pages at equal distances, as
// those of buffers in a row are, get entries far apart (Fibonacci hashing).
func viewPage(addr uint64) uint32 { return uint32(addr>>12) * 0x9E3779B1 >> (32 - 8) }

// NewView makes a View. The name is for Close of the cache, which refuses and
// names them while Views are open. Errors: hca.ErrClosed.
func (c *Cache) NewView(name string) (*View, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != cacheOpen {
		return nil, &hca.OpError{Op: "new view", Device: c.info.Name, Err: hca.ErrClosed}
	}
	v := &View{c: c, name: name, asked: &c.recall, recall: c.recall.Load()}
	v.moved.Store(1)
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
	return v.lookUp(uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), uint64(len(b)), a, unsafe.SliceData(b))
}

// lookUp tries one slot, that which the table names. p is not nil if the caller has
// a slice; then addr is that of p.
//
// The argument is that of hit.go with steps 2 and 4 made easier. The View has a
// reference already, so the Region cannot be deregistered. And step 4, that it is
// not dead, needs no look at the Region: it is enough that the recall count is
// what it was when the View last looked through its slots, because
//
//   - what is in a slot is in use, and who makes a Region dead that is in use raises
//     the count after that (removeLocked), before it tells hits that the event is
//     applied, and before a call that was to end the Region returns. So whatever
//     event step 3 saw applied, the count that is loaded after it shows, and so does
//     whatever the owner of the memory said before this Get;
//   - a View that sees another count than it knows takes it down, and then looks
//     through its slots and takes what is dead out of look-up (Drop);
//   - what it puts into a slot later was not dead after that.
//
// For owned memory that makes step 6 superfluous: at the moment when the counter
// was loaded, which is within the call, no event had been counted that was not
// applied, and owned memory does not go before its event is counted. Held and
// on-demand memory has two equal numbers in place of the counters; foreign memory,
// which needs the probe, two that differ.
//
// What is not here for the sake of the argument is here for the sake of time, which
// is that of a few instructions (docs/performance.md):
//
//   - the slot is found without trying any other: which of several tries succeeds is
//     what a processor cannot foresee, and to be wrong costs it more than all the rest;
//   - a count that is raised by each Get and lowered by each Release makes each wait
//     for the one before. So a Get that nobody else's is out with only notes the
//     Region in newest, and Release takes the note away. The next Get, if the Region
//     is still out, counts it in its slot first;
//   - whatever leaves the straight path is a call whose result is returned at once,
//     and Get, GetBytes and Release are short enough to be put where they are called.
//     The stack is not checked: what is called checks it.
//
//go:nosplit
func (v *View) lookUp(addr, n uint64, a hca.Access, p *byte) (*Region, error) {
	end := addr + n
	i := uint32(v.table[viewPage(addr)])
	s := &v.slots[i%viewSlots]
	if s.start <= addr && end <= s.end && end > addr && s.lacks&a == 0 {
		if s.counter.Load() == s.applied.Load() {
			if v.asked.Load() == v.recall {
				r := s.r
				v.hits++
				if v.newest == 0 {
					return v.take(i, r)
				}
				v.settle()
				return v.take(i, r)
			}
		}
	}
	return v.lookFurther(addr, n, a, p)
}

// take notes that the endpoint has r, of slot i. There must be no newest.
func (v *View) take(i uint32, r *Region) (*Region, error) {
	v.newest = uint64(uintptr(unsafe.Pointer(r)))
	v.last = i
	return r, nil
}

// settle counts newest in its slot. Whoever looks at the count of a slot settles
// first.
func (v *View) settle() {
	if v.newest != 0 {
		v.newest = 0
		v.slots[v.last%viewSlots].out++
	}
}

// lookFurther is what is left: what the table does not know, foreign memory, Regions
// that died, and what is in no slot.
func (v *View) lookFurther(addr, n uint64, a hca.Access, p *byte) (*Region, error) {
	c := v.c
	v.settle()
	if asked := c.recall.Load(); asked != v.recall {
		v.recall = asked
		v.Drop()
	}
	end := addr + n
	for i := range v.slots {
		s := &v.slots[i]
		if end <= addr || addr < s.start || end > s.end || s.lacks&a != 0 {
			continue
		}
		r := s.r
		quiet := r.check == checkNothing || c.omit == 0 && c.quiet(r)
		if r.state.Load()&stDead != 0 {
			v.empty(s)
			continue
		}
		if quiet {
			v.hits++
			v.table[viewPage(addr)] = uint8(i)
			return v.take(uint32(i), r)
		}
	}
	if v.closed {
		return nil, &hca.OpError{Op: "get", Device: v.name, Range: hca.Range{Addr: addr, Len: n}, Detail: "the View was closed", Err: hca.ErrClosed}
	}
	r := c.hit(addr, end, a, maxProbes)
	if r == nil {
		v.Drop() // what this View holds must not be what there is no room for, nor keep neighbours from merging
		var err error
		if r, err = c.lookUp(addr, n, a, unsafe.Pointer(p)); err != nil {
			return nil, err
		}
	} else {
		r.traceGet()
	}
	v.keep(r, addr)
	return r, nil
}

// keep puts a Region that the cache has just given, for a range at addr, into a slot,
// in the place of one that the endpoint does not have. A Region that is used once is
// not kept.
func (v *View) keep(r *Region, addr uint64) {
	if r.state.Load()&stDead != 0 {
		return
	}
	for n := range uint32(viewSlots) {
		i := (v.last + 1 + n) % viewSlots
		s := &v.slots[i]
		if s.r != nil && s.out > 0 {
			continue
		}
		v.empty(s)
		*s = viewSlot{start: r.start, end: r.end, lacks: ^r.access, counter: &v.still, applied: &v.still, r: r}
		switch r.check {
		case checkCounter:
			w := &v.c.words[r.word]
			s.counter, s.applied = w.counter, &w.applied
		case checkProbe:
			s.applied = &v.moved
		}
		v.table[viewPage(addr)] = uint8(i)
		v.table[viewPage(r.start)] = uint8(i) // for Release
		_, _ = v.take(i, r)
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
	// One comparison says that it is newest and not dead: a pointer is even.
	if v.newest == uint64(uintptr(unsafe.Pointer(r)))|r.state.Load()>>63 {
		v.newest = 0
	} else {
		v.releaseFurther(r)
	}
}

// releaseFurther is Release of what was not got last, or has died.
func (v *View) releaseFurther(r *Region) {
	if v.newest == uint64(uintptr(unsafe.Pointer(r))) {
		v.settle()
	}
	s := &v.slots[v.table[viewPage(r.start)]%viewSlots]
	for i := 0; s.r != r || s.out == 0; i++ {
		if i == viewSlots {
			r.Release() // it was not kept
			return
		}
		s = &v.slots[i]
	}
	if s.out--; r.state.Load()&stDead != 0 {
		v.empty(s)
	}
}

// Drop lets go of everything that the endpoint does not have, and adds the hits
// to the cache's Stats.
func (v *View) Drop() {
	v.settle()
	for i := range v.slots {
		s := &v.slots[i]
		if s.r != nil && (s.out == 0 || s.r.state.Load()&stDead != 0) {
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
	v.settle()
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

// recallLocked asks the Views to look through what they hold: to let go of what
// their endpoints do not have, which is a wish for room, and to find what is dead.
// Of a Region in use that was made dead it must be called before anybody is told
// that it is (see View.lookUp). Cache.mu is held.
func (c *Cache) recallLocked() {
	if len(c.views) > 0 {
		c.recall.Add(1)
	}
}
