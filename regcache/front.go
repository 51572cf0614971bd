package regcache

import (
	"math/bits"
	"sync/atomic"

	"example.com/holdfast/hca"
)

const (
	// The smallest front is so large that hardly any two of a thousand Regions and a
	// thousand pages inside them want the same entry: 128 KiB. With 4096 entries a fifth
	// did, and a hit that has to look twice, which the processor does not foresee, took
	// 19 ns where it takes 12.
	minFront = 1 << 14

	// Entries of the front that a page may stand in: those of a cache line.
	frontLine = 8

	// Entries of pages inside Regions, of all that the front has: as many dead Regions
	// may be kept in memory by it.
	maxHints = minFront
)

// front is a cache of Regions by page. A page may stand in any entry of one cache
// line; the first two that it would take are all that the straight path of a hit looks at,
// and with half of the entries in use nine of ten stand there.
//
// There are two sorts of entries. A Region's start is the entry for the page in
// which it starts: insert makes it and remove takes it out. A hint is an entry for a page
// further inside; who had to search the table for it makes it. Which of the two an entry
// is can be seen from where it stands, and matters when a line is full: a start takes
// the place of a hint, and a hint that of another hint, never that of a start.
//
// Everybody writes, without a lock and by compare-and-swap, because nothing has to be kept
// true: an entry that is lost is made again, one that is too many or names a dead Region is
// passed over, and taken out by who sees it, so that it is seen once. What is bounded is
// how many dead Regions the front keeps from the garbage collector. A start goes with
// its Region, unless a reader finds the Region in the table just before and puts it here just
// after. Hints to a dead Region stay until they are seen or their place is needed, but there
// are no more than maxHints, beside those that are made at the same moment.
type front struct {
	entries []atomic.Pointer[Region]
	page    uint     // address to page
	shift   uint     // hash to entry
	_       [88]byte // as in table; and what follows is written
	hints   atomic.Int32
	_       [124]byte
}

func newFront(size int, page uint) *front {
	return &front{entries: make([]atomic.Pointer[Region], size), page: page, shift: uint(64 - bits.Len64(uint64(size-1)))}
}

// slot is the first entry for the page at addr; the others are slot^1 to
// slot^(frontLine-1).
//
// A hit that does not find its Region in the first place is not foreseen by the processor,
// which then waits for memory where it would have gone on: with many Regions that is
// half of a hit. And Regions are often evenly spaced. So the multiplier is one, of some
// thousands that were tried, that keeps what is evenly spaced apart as a rule: by a power of two
// pages, or a page or two more. No multiplier does that for every stride; one that is bad costs
// time. A hash that mixes well has no bad stride, and no good one either: as many Regions
// are not in the first place as if there were no order in them (TestStridesInTheFront).
func (f *front) slot(addr uint64) uint64 {
	return addr >> (f.page & 63) * 0x1CF1E9F82517E1E1 >> (f.shift & 63)
}

// isHint reports whether r at an entry is a hint there and not its start.
func (f *front) isHint(at uint64, r *Region) bool { return f.slot(r.start)^at >= frontLine }

// find is a Region in the line of addr that covers [addr,end) with at least the access.
// It ends at an empty entry: what stands behind one, because something has been taken
// out, is found in the table and put into that place.
func (f *front) find(addr, end uint64, a hca.Access) *Region {
	at := f.slot(addr)
	for k := range uint64(frontLine) {
		r := f.entries[at^k].Load()
		switch {
		case r == nil:
			return nil
		case !r.covers(addr, end, a):
		case r.state.Load()&stDead != 0:
			f.swap(at^k, r, nil)
		default:
			return r
		}
	}
	return nil
}

// put makes an entry for r at addr, if there is a place for it.
func (f *front) put(addr uint64, r *Region) {
	at := f.slot(addr)
	hint := f.isHint(at, r)
	if !hint || f.hints.Load() < maxHints {
		for k := range uint64(frontLine) {
			if e := &f.entries[at^k]; e.Load() == nil && e.CompareAndSwap(nil, r) {
				if hint {
					f.hints.Add(1)
				}
				return
			}
		}
	}
	for k := range uint64(frontLine) {
		old := f.entries[at^k].Load()
		if old != nil && (f.isHint(at^k, old) || old.state.Load()&stDead != 0) && f.swap(at^k, old, r) {
			return
		}
	}
}

// drop takes out what there is for r at its start.
func (f *front) drop(r *Region) {
	at := f.slot(r.start)
	for k := range uint64(frontLine) {
		if e := &f.entries[at^k]; e.Load() == r {
			e.CompareAndSwap(r, nil)
		}
	}
}

// swap replaces an entry, if it is still what it was, and counts the hints.
func (f *front) swap(at uint64, old, r *Region) bool {
	if !f.entries[at].CompareAndSwap(old, r) {
		return false
	}
	var more int32
	if old != nil && f.isHint(at, old) {
		more--
	}
	if r != nil && f.isHint(at, r) {
		more++
	}
	if more != 0 {
		f.hints.Add(more)
	}
	return true
}
