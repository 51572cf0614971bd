package regcache

import (
	"math"
	"math/bits"
	"sync/atomic"

	"example.com/holdfast/hca"
)

// The index answers "which Region covers this range", with one look as a rule,
// however many Regions there are and of however many sizes. It has two parts.
//
// The table has every Region once, and is what is true. A Region of length n belongs
// to the size class c with 2^(c-1) < n <= 2^c, and stands in the table under the
// aligned block of 2^c bytes in which it starts. A Region that covers addr starts
// in the block of addr in its class or in the one before, because it is no longer
// than a block; and its class is at least that of the range asked for. So whoever
// probes, for each class in use that is large enough (a bit mask says which are),
// the block of addr and the block before, finds whatever there is.
//
// The front is what a hit looks at first: an entry for the page in which a Region
// starts, and one for each page inside a Region for which the table had to be searched.
// So it does not matter to a hit how many classes are in use. It is a cache: it may
// lack any entry, in which case the table is searched and the entry made.
//
// An entry of either is a pointer to the Region and nothing else: what it stands for
// is read in the Region. So a hit waits for two cache lines, one after the other, the
// entry and the Region, and eight entries share a line: those of 65,536 Regions
// take 1 MiB, as much as a second-level cache. That a hit needs few instructions
// besides matters as much: with many Regions its time is that of the cache misses,
// and the processor overlaps those of the next hits as far as it can look ahead.
//
// Readers take no lock. What they rely on:
//   - start, end and access of a Region never change, and a Region is never
//     used again for something else (the garbage collector frees it), so what a
//     reader finds in an entry is right if it covers the range, whatever led to it,
//     and is passed over if not;
//   - a removed entry of the table becomes a tombstone, so that probing goes on past
//     it; in the front no entry depends on another;
//   - a table or front that grows is replaced by another, and the old one is left as
//     it is: a reader in it may miss what is new and find what is dead. The dead
//     bit catches the second, the slow path, which applies and looks under the
//     lock, the first.
type index struct {
	front   atomic.Pointer[front]
	table   atomic.Pointer[table]
	classes atomic.Uint64 // bit c set: there are Regions of class c
	_       [112]byte     // hits read what is above, and what is below is written by every miss

	// guarded by Cache.mu
	used     int            // entries of the table that are not nil, tombstones counted
	perClass [64]int        // Regions of each class
	regions  int            // Regions in the index
	areas    map[uint64]int // Regions that start in each run of areaBlocks blocks, by areaOf their key
}

type table struct {
	entries []atomic.Pointer[Region] // nil ends a probe; gone is a tombstone
	mask    uint64
	shift   uint     // hash to entry
	_       [88]byte // two lines of its own: what is small shares one with whatever is made next
}

// gone stands where a Region was removed. It covers nothing.
var gone = &Region{start: math.MaxUint64}

const (
	minClass = 6  // 64 bytes: below that, Regions share a class
	maxClass = 63 // a Region of the whole address space

	// Long events skip stretches of this many blocks in which no Region starts.
	areaBlocks = 1 << 10

	// The smallest table is large for what it holds, so that entries which hits
	// read seldom share a line with those that come and go: 32 KiB.
	minTable = 1 << 12

	// A hit looks at this many entries for a key before it leaves it to the
	// slow path; there are more only where many Regions of one size overlap.
	maxProbes = 32
)

func classOf(length uint64) uint {
	return min(max(uint(bits.Len64(length-1)), minClass), maxClass)
}

// keyOf is unique for class and block: the block number leaves the six low bits
// free for the class.
func keyOf(addr uint64, class uint) uint64 { return addr>>(class&63)<<6 | uint64(class) }

// before is the key of the block before, in the same class. Before the first
// block comes the last of all, which is empty.
func before(key uint64) uint64 { return key - 1<<6 }

// areaOf is unique for a class and a run of areaBlocks blocks.
func areaOf(key uint64) uint64 { return key>>6/areaBlocks<<6 | key&63 }

// slot spreads keys over the table (Fibonacci hashing: the high bits of the
// product depend on all of the key).
func (t *table) slot(key uint64) uint64 { return key * 0x9E3779B97F4A7C15 >> (t.shift & 63) }

func newTable(size int) *table {
	return &table{entries: make([]atomic.Pointer[Region], size), mask: uint64(size - 1), shift: uint(64 - bits.Len64(uint64(size-1)))}
}

// init makes the index ready. Regions as a rule start at multiples of page.
func (x *index) init(page uint64) {
	x.table.Store(newTable(minTable))
	x.front.Store(newFront(minFront, uint(bits.TrailingZeros64(page))))
	x.areas = map[uint64]int{}
}

// covers reports whether there is a Region r, and it covers [addr,end) with at least
// the access. It may be dead.
func (r *Region) covers(addr, end uint64, a hca.Access) bool {
	return r != nil && r.start <= addr && end <= r.end && r.access&a == a
}

// widest is where in the table Regions of the largest class in use stand that start in
// the block of addr. Such Regions may have more pages than there can be hints,
// so a hit looks here before it leaves the straight path; under on-demand paging all
// Regions are of this class.
func (x *index) widest(addr uint64) (t *table, key uint64) {
	return x.table.Load(), keyOf(addr, uint(bits.Len64(x.classes.Load()>>1)))
}

// first is the Region in the first entry for a key.
func (t *table) first(key uint64) *Region { return t.entries[t.slot(key)].Load() }

// find looks for a Region that covers [addr, end) with at least the access. It
// is the readers' side: no lock, and nil proves nothing. It reads at most limit
// entries of the table for each key.
//
// The larger classes come first: what is not asked for by its start lies
// in a large Region more often than in a small one.
func (x *index) find(addr, end uint64, a hca.Access, limit int) *Region {
	f := x.front.Load()
	if r := f.entries[f.slot(addr)].Load(); r.covers(addr, end, a) && r.state.Load()&stDead == 0 {
		return r // most are, and need no call
	}
	if r := f.find(addr, end, a); r != nil {
		return r
	}
	t := x.table.Load()
	c := classOf(end-addr) & 63
	for classes := x.classes.Load() >> c << c; classes != 0; {
		class := uint(bits.Len64(classes >> 1))
		key := keyOf(addr, class)
		r := t.probe(key, addr, end, a, limit)
		if r == nil {
			r = t.probe(before(key), addr, end, a, limit)
		}
		if r != nil {
			x.remember(f, addr, r)
			return r
		}
		classes &^= 1 << class
	}
	return nil
}

// remember puts r, which was found in the table, into the front. Not if it is of the
// widest class and has more pages than there can be hints: a hit looks where it stands in
// the table anyway, and its pages would push out what others need.
func (x *index) remember(f *front, addr uint64, r *Region) {
	if _, key := x.widest(addr); key&63 == r.key()&63 && (r.end-r.start)>>(f.page&63) > maxHints {
		return
	}
	f.put(addr, r)
}

func (t *table) probe(key, addr, end uint64, a hca.Access, limit int) *Region {
	for i := t.slot(key); limit > 0; i, limit = i+1, limit-1 {
		r := t.entries[i&t.mask].Load()
		if r == nil {
			return nil
		}
		if r.covers(addr, end, a) {
			return r
		}
	}
	return nil
}

// each calls f for every Region under key until f says stop. Cache.mu is held.
func (t *table) each(key uint64, f func(*Region) bool) bool {
	for i := t.slot(key); ; i++ {
		switch r := t.entries[i&t.mask].Load(); {
		case r == nil:
			return true
		case r != gone && r.key() == key && !f(r):
			return false
		}
	}
}

// findAll calls f for every Region that covers the whole of g, whatever its
// access, until f says stop. Cache.mu is held; f must not change the index.
func (x *index) findAll(g hca.Range, f func(*Region) bool) {
	t := x.table.Load()
	low := classOf(g.Len)
	covers := func(r *Region) bool { return !r.Range().Contains(g) || f(r) }
	for classes := x.classes.Load() >> low << low; classes != 0; classes &= classes - 1 {
		key := keyOf(g.Addr, uint(bits.TrailingZeros64(classes)))
		if !t.each(key, covers) || !t.each(before(key), covers) {
			return
		}
	}
}

// findLocked is find by the writers' side: nil means that there is none.
// Cache.mu is held.
func (x *index) findLocked(g hca.Range, a hca.Access) *Region {
	var found *Region
	x.findAll(g, func(r *Region) bool {
		if r.access.Has(a) {
			found = r
		}
		return found == nil
	})
	return found
}

// overlapping appends every Region that shares a byte with g to out. Cache.mu
// is held.
//
// It probes the blocks of g, and the one before, in every class in use. In a
// long range it skips the areas in which no Region starts, so what it costs goes
// with what is there and not with the length of g: an event of a terabyte over
// nothing costs a look at each area that there is.
func (x *index) overlapping(g hca.Range, out []*Region) []*Region {
	t := x.table.Load()
	keep := func(r *Region) bool {
		if r.Range().Overlaps(g) {
			out = append(out, r)
		}
		return true
	}
	blocks := func(from, to uint64) { // keys of one class
		for t.each(from, keep); from != to; t.each(from, keep) {
			from += 1 << 6
		}
	}
	for classes := x.classes.Load(); classes != 0; classes &= classes - 1 {
		c := uint(bits.TrailingZeros64(classes))
		first, last := keyOf(g.Addr, c), keyOf(g.End()-1, c)
		if g.Addr>>c > 0 {
			first = before(first)
		}
		n := (last-first)>>6 + 1
		if n <= areaBlocks/16 {
			blocks(first, last)
			continue
		}
		one := func(area uint64) {
			from := area>>6*areaBlocks<<6 | area&63
			blocks(max(from, first), min(from+(areaBlocks-1)<<6, last))
		}
		if n/areaBlocks <= uint64(len(x.areas)) {
			for area := areaOf(first); area <= areaOf(last); area += 1 << 6 {
				if x.areas[area] > 0 {
					one(area)
				}
			}
			continue
		}
		for area := range x.areas {
			if area&63 == uint64(c) && area >= areaOf(first) && area <= areaOf(last) {
				one(area)
			}
		}
	}
	return out
}

// walk calls f for every Region in the table until f says stop. Cache.mu is held.
func (t *table) walk(f func(r *Region) bool) {
	for i := range t.entries {
		if r := t.entries[i].Load(); r != nil && r != gone && !f(r) {
			return
		}
	}
}

// all appends every Region in the index to out. Cache.mu is held.
func (x *index) all(out []*Region) []*Region {
	x.table.Load().walk(func(r *Region) bool {
		out = append(out, r)
		return true
	})
	return out
}

func (r *Region) key() uint64 { return keyOf(r.start, classOf(r.end-r.start)) }

// insert puts r in. Cache.mu is held.
func (x *index) insert(r *Region) {
	t := x.table.Load()
	if (x.used+1)*8 > len(t.entries)*5 {
		t = x.rebuild()
	}
	c := classOf(r.end - r.start)
	if x.perClass[c]++; x.perClass[c] == 1 {
		x.classes.Store(x.classes.Load() | 1<<c)
	}
	x.regions++
	x.areas[areaOf(r.key())]++
	if t.put(r) {
		x.used++
	}
	x.front.Load().put(r.start, r)
}

// remove takes r out, which must be in. It allocates nothing. Cache.mu is held.
func (x *index) remove(r *Region) {
	t := x.table.Load()
	t.first(r.key()) // so that the processor fetches this line while it waits for that of the front
	x.front.Load().drop(r)
	x.used -= t.drop(r)
	c := classOf(r.end - r.start)
	if x.perClass[c]--; x.perClass[c] == 0 {
		x.classes.Store(x.classes.Load() &^ (1 << c))
	}
	x.regions--
	area := areaOf(r.key())
	if x.areas[area]--; x.areas[area] == 0 {
		delete(x.areas, area)
	}
}

// rebuild makes a table without tombstones, five sixteenths to half full: a table
// of that size is used until five eighths of it are full. The front is as large;
// having no tombstones, it stays if its size is right.
func (x *index) rebuild() *table {
	size := minTable
	for size < (x.regions+1)*2 {
		size *= 2
	}
	t := newTable(size)
	x.table.Load().walk(func(r *Region) bool { t.put(r); return true })
	x.used = x.regions
	x.table.Store(t)
	if f := x.front.Load(); len(f.entries) != max(size, minFront) {
		f = newFront(max(size, minFront), f.page)
		t.walk(func(r *Region) bool { f.put(r.start, r); return true })
		x.front.Store(f)
	}
	return t
}

// put puts r in and reports whether that took an entry that was nil.
func (t *table) put(r *Region) bool {
	for i := t.slot(r.key()); ; i++ {
		e := &t.entries[i&t.mask]
		switch e.Load() {
		case nil:
			e.Store(r)
			return true
		case gone:
			e.Store(r)
			return false
		}
	}
}

// drop takes r out and says how many entries that made nil: a tombstone just
// before an empty entry ends no probe.
func (t *table) drop(r *Region) (freed int) {
	i := t.slot(r.key())
	for t.entries[i&t.mask].Load() != r {
		i++
	}
	t.entries[i&t.mask].Store(gone)
	if t.entries[(i+1)&t.mask].Load() == nil {
		for ; t.entries[i&t.mask].Load() == gone; i-- {
			t.entries[i&t.mask].Store(nil)
			freed++
		}
	}
	return freed
}
