package regcache

import (
	"math/bits"
	"unsafe"

	"example.com/holdfast/hca"
)

// The hit is the path that every message pays for. It answers with a Region from
// the index if that can be proved right without a lock. The argument that it
// never answers with memory that is gone is this.
//
// Let an operation take memory away. The monitor promises (see Monitor): its
// event is in every feed before the counter counts it; while it is out of the
// kernel and not yet counted, the counter is unsettled; and before the memory
// goes either the counter has counted it (owned memory) or UnderWay has begun
// to answer true for it (foreign memory), until the counter is unsettled or
// has counted it.
//
// A hit does, in this order:
//
//  1. g = counter;
//  2. g must equal applied. applied is only ever a settled value (parity: an
//     unsettled g can equal no applied), and every event that g counts has been
//     applied: Regions it touched are dead;
//  3. look the Region up;
//  4. take a reference; the Region must not be dead after that. From here it is
//     not deregistered until the reference is given back;
//  5. foreign memory: UnderWay must answer false;
//  6. counter must still be g.
//
// Suppose it answers with a Region whose memory an operation took away before
// step 6 was over, the operation having begun after the Region was published.
// If the event is counted in g, the Region was dead before step 2 loaded
// applied, so step 4 saw it. If it was counted after step 1 and before step 6,
// step 6 saw another value; the same if the counter was unsettled by it. If it
// was not counted by step 6: owned memory had then not gone yet, and foreign
// memory that had gone before step 5 made step 5 see it. Foreign memory that
// goes after step 5 goes while the caller already holds what was right at step
// 5, a moment within the call.
//
// The steps are atomic loads and additions, which in Go are all in one order
// (sequentially consistent, The Go Memory Model), and the monitor's system call
// in step 5 is ordered by the kernel's lock, after 4 and before 6 in program
// order.
//
// Regions whose check is checkNothing need none of it: held memory cannot go
// away while its Region is kept, and an on-demand registration stays right
// whatever happens to the memory.
//
// The code is in three pieces: lookUp has the steps for the two cheap kinds of
// memory and the first probes of the table; proved has all of them from 4 on; hit
// is the same path for those who have already left the straight one.

// lookUp is Get and GetBytes: a hit, or whatever else it takes. p is not nil if
// the caller has a slice.
//
// It is written for the compiler. Whatever is not the straight path is left by a
// call whose result is returned at once, so that nothing has to be saved on the
// stack for after it: a locked instruction waits for the stores before it.
func (c *Cache) lookUp(addr, n uint64, a hca.Access, p unsafe.Pointer) (*Region, error) {
	addr |= uint64(uintptr(p))
	end := addr + n
	g := c.counter.Load()
	if g != c.applied.Load() || end <= addr {
		return c.lookFurther(addr, end, a, p)
	}
	t := c.index.table.Load()
	large := uint(bits.Len64(n-1)) & 63
	for classes := c.index.classes.Load() >> large << large; classes != 0; classes &= classes - 1 {
		r := t.entries[t.slot(keyOf(addr, uint(bits.TrailingZeros64(classes))))].Load()
		if r == nil || r.start > addr || end > r.end || r.access&a != a {
			continue
		}
		if w := r.state.Add(stHit + stRef); w&stHitRare == 0 && c.counter.Load() == g {
			r.traceGet()
			return r, nil
		}
		return c.finish(r, g, addr, end, a, p)
	}
	return c.lookFurther(addr, end, a, p)
}

// finish ends a look-up that found a Region by its first probes, with the
// counter at g and everything applied, and has taken the reference, but needs
// more than the cheapest proof. The Region may have died since the reference was
// taken; then it is taken for one that was dead before.
func (c *Cache) finish(r *Region, g, addr, end uint64, a hca.Access, p unsafe.Pointer) (*Region, error) {
	if c.proved(r, r.state.Load(), g, true) {
		r.traceGet()
		return r, nil
	}
	return c.get(addr, end-addr, a, p)
}

// lookFurther is what is tried when the first probes found nothing.
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
	g := c.counter.Load()
	settled := g == c.applied.Load()
	if end <= addr {
		return nil
	}
	r := c.index.find(addr, end, a, limit)
	if r == nil || !c.proved(r, r.state.Add(stHit+stRef), g, settled) {
		return nil
	}
	return r
}

// proved is steps 4 to 6 for a Region whose reference has been taken, which made
// its word w: it reports whether the caller has it, and gives the reference back
// if not. g was loaded and compared with applied before the Region was looked up.
func (c *Cache) proved(r *Region, w, g uint64, settled bool) bool {
	if w&stHitRare != 0 && !c.hitRare(r, w) {
		return false
	}
	if r.check == checkNothing {
		return true
	}
	ok := settled && (r.check == checkCounter || !c.monitor.UnderWay(r.domains)) && c.counter.Load() == g
	if c.omit != 0 {
		ok = c.provedOmitting(r, g, settled)
	}
	if !ok {
		c.undoHit(r)
	}
	return ok
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
		c.touch(r)
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

// provedOmitting is steps 5 and 6 without the parts that a test has left out.
func (c *Cache) provedOmitting(r *Region, g uint64, settled bool) bool {
	ok := settled || c.omit&omitApplied != 0 ||
		c.omit&omitParity != 0 && g&^hca.Unsettled == c.applied.Load()
	ok = ok && (r.check == checkCounter || c.omit&omitProbe != 0 || !c.monitor.UnderWay(r.domains))
	return ok && (c.omit&omitSecondLook != 0 || c.counter.Load() == g ||
		c.omit&omitParity != 0 && c.counter.Load()&^hca.Unsettled == g&^hca.Unsettled)
}
