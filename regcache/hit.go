package regcache

import (
	"unsafe"

	"example.com/holdfast/hca"
)

// The hit is the path that every message pays for. It answers with a Region from
// the index if that can be proved right without a lock. The argument that it
// never answers with memory that is gone is this.
//
// Let an operation take memory away. The monitor promises (see Monitor): its
// event is in every feed before the memory's counter counts it; while it is out
// of the kernel and not yet counted, the counter is unsettled; and before the
// memory goes either the counter has counted it (owned memory) or UnderWay has
// begun to answer true for it (foreign memory), until the counter is unsettled or
// has counted it.
//
// A hit does, in this order:
//
//  1. look a Region up that covers the range with the access;
//  2. take a reference. If the Region is not dead in a later step it was not dead
//     in this one, and is not deregistered until the reference is given back;
//  3. g = the counter of its memory; g must equal applied. applied is only ever a
//     settled value (parity: an unsettled g can equal no applied), and every event
//     that g counts has been applied: Regions it touched are dead;
//  4. the Region must not be dead;
//  5. foreign memory: UnderWay must answer false;
//  6. foreign memory: the counter must still be g.
//
// Suppose it answers with a Region whose memory an operation took away after it
// was registered. The flight that made it was on the list before it registered, so
// if the event was applied before the Region was published it marked the flight,
// which then did not publish (flight.go). If the event was counted when step 3
// loaded g, and so applied, the Region was dead before step 3 loaded applied, and
// step 4 saw it. So the event was counted after that moment. Owned memory goes after its
// event is counted, so at that moment, within the call, the answer was right. If
// foreign memory went before step 5 it made step 5 see it, or the counter had been
// raised or unsettled by then, and step 6 saw it. Foreign memory that goes after
// step 5 goes while the caller already holds what was right at step 5, a moment
// within the call.
//
// The steps are atomic loads and additions, which in Go are all in one order
// (sequentially consistent, The Go Memory Model), and the monitor's system call
// in step 5 is ordered by the kernel's lock, after 4 and before 6 in program
// order.
//
// Regions whose check is checkNothing need only steps 1, 2 and 4: held memory
// cannot go away while its Region is kept, and an on-demand registration stays
// right whatever happens to the memory. They look at no counter, so that no event
// costs their hits anything.
//
// The code is in three pieces: lookUp has the steps for the two cheap kinds of
// memory and the first places in the index; proved has all of them from 3 on; hit
// is the same path for those who have already left the straight one.

// lookUp is Get and GetBytes: a hit, or whatever else it takes. p is not nil if
// the caller has a slice; then addr is 0, and is found in it.
//
// It looks at four entries of the index: two where the page may stand in the front, which has
// what is asked for by its start and what was asked for before; and two where a Region of the
// widest class may stand in the table, which has more pages than the front can remember.
//
// It is written for the compiler. Whatever is not the straight path is left by a
// call whose result is returned at once, so that nothing has to be saved on the
// stack for after it: a locked instruction waits for the stores before it. For the
// same reason Get, GetBytes and Release are short enough to be put where they are
// called. What is loaded after the locked instruction costs least: it does not
// hold it up.
func (c *Cache) lookUp(addr, n uint64, a hca.Access, p unsafe.Pointer) (*Region, error) {
	addr |= uint64(uintptr(p))
	end := addr + n
	if end <= addr {
		return c.get(addr, n, a, p)
	}
	f := c.index.front.Load()
	at := f.slot(addr)
	r := f.entries[at].Load()
	if !r.covers(addr, end, a) {
		r = f.entries[at^1].Load()
		if !r.covers(addr, end, a) {
			t, key := c.index.widest(addr)
			r = t.first(key)
			if !r.covers(addr, end, a) {
				r = t.first(before(key))
				if !r.covers(addr, end, a) {
					return c.lookFurther(addr, end, a, p)
				}
			}
		}
	}
	if r.check == checkNothing {
		if r.state.Add(stHit+stRef)&stHitRare == 0 {
			r.traceGet()
			return r, nil
		}
		return c.finish(r, addr, end, a, p)
	}
	r.state.Add(stHit + stRef)
	if c.words[r.word&(maxWords-1)].settled() && r.state.Load()&stHitRare == 0 {
		r.traceGet()
		return r, nil
	}
	return c.finish(r, addr, end, a, p)
}

// finish ends a look-up that found a Region in the first places, and has taken
// the reference, but needs more than the cheapest proof. If the Region is dead it was a hint,
// which whoever searches takes out, or is just leaving the index.
func (c *Cache) finish(r *Region, addr, end uint64, a hca.Access, p unsafe.Pointer) (*Region, error) {
	if c.proved(r) {
		r.traceGet()
		return r, nil
	}
	if r.state.Load()&stDead != 0 {
		return c.lookFurther(addr, end, a, p)
	}
	return c.get(addr, end-addr, a, p)
}

// lookFurther is what is tried when the first places had nothing.
func (c *Cache) lookFurther(addr, end uint64, a hca.Access, p unsafe.Pointer) (*Region, error) {
	if r := c.hit(addr, end, a, maxProbes); r != nil {
		r.traceGet()
		return r, nil
	}
	return c.get(addr, end-addr, a, p)
}

// hit looks at no more than limit entries for each key, and answers with nil if
// it finds nothing or cannot prove it, which proves nothing. An empty range, or
// one that runs past the end of the address space, is no hit.
func (c *Cache) hit(addr, end uint64, a hca.Access, limit int) *Region {
	if end <= addr {
		return nil
	}
	r := c.index.find(addr, end, a, limit)
	if r == nil {
		return nil
	}
	r.state.Add(stHit + stRef)
	if !c.proved(r) {
		return nil
	}
	return r
}

// proved is steps 3 to 6 for a Region whose reference has been taken: it reports
// whether the caller has it, and gives the reference back if not. Step 4 is done
// last: what is not dead then was not dead before.
func (c *Cache) proved(r *Region) bool {
	var ok bool
	switch {
	case r.check == checkNothing:
		ok = true
	case c.omit != 0:
		ok = c.quietOmitting(r)
	default:
		ok = c.quiet(r)
	}
	if s := r.state.Load(); s&stHitRare != 0 && !c.hitRare(r, s) {
		return false
	}
	if !ok {
		c.undoHit(r)
	}
	return ok
}

// quiet is steps 3, 5 and 6 for memory that can go away: everything counted has
// been applied, nothing is under way, and nothing was counted meanwhile.
func (c *Cache) quiet(r *Region) bool {
	w := &c.words[r.word]
	g := w.counter.Load()
	return g == w.applied.Load() && (r.check == checkCounter || !c.monitor.UnderWay(r.domains)) && w.counter.Load() == g
}

// hitRare takes care of what a hit finds in the state word now and then, and
// reports whether the hit goes on.
func (c *Cache) hitRare(r *Region, w uint64) bool {
	if w&stDead != 0 {
		c.undoHit(r)
		return false
	}
	if w&stRefHigh != 0 {
		panic("regcache: more than 8 million references to one Region: Release is missing somewhere")
	}
	if w&stHitHigh != 0 {
		c.harvestHits(r)
	}
	if w&stCold != 0 {
		r.touch()
	}
	return true
}

// undoHit gives back the reference and the hit of a hit that was none.
func (c *Cache) undoHit(r *Region) {
	w := r.state.Add(^(stHit + stRef) + 1)
	if w&stReleaseRare != 0 {
		r.releaseRare(w)
	}
}

// harvestHits moves half of the hits that a Region's word can count into the
// cache's count. Half, so that hits being undone at this moment cannot make it
// run below zero.
func (c *Cache) harvestHits(r *Region) {
	const half = stHitHigh >> 1
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.state.Load()&stHitHigh != 0 {
		r.state.Add(^half + 1)
		c.count.hits += hitsOf(half)
	}
}

// omission is a set of parts of the protocol that a test leaves out, to see
// that each of them is needed.
type omission uint8

const (
	omitParity omission = 1 << iota // treat an unsettled counter like a settled one
	omitApplied
	omitProbe
	omitSecondLook
)

// quietOmitting is quiet without the parts that a test has left out.
func (c *Cache) quietOmitting(r *Region) bool {
	w := &c.words[r.word]
	g := w.counter.Load()
	ok := g == w.applied.Load() || c.omit&omitApplied != 0 ||
		c.omit&omitParity != 0 && g&^hca.Unsettled == w.applied.Load()
	ok = ok && (r.check == checkCounter || c.omit&omitProbe != 0 || !c.monitor.UnderWay(r.domains))
	return ok && (c.omit&omitSecondLook != 0 || w.counter.Load() == g ||
		c.omit&omitParity != 0 && w.counter.Load()&^hca.Unsettled == g&^hca.Unsettled)
}
