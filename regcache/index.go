package regcache

import (
	"math/bits"
	"sync/atomic"

	"example.com/holdfast/hca"
)

// The index answers "which Region covers this range" with one probe of a hash
// table as a rule, however many Regions there are.
//
// A Region of length n belongs to the size class c with 2^(c-1) < n <= 2^c, and
// stands in the table under each aligned block of 2^c bytes that it touches:
// one or two. A Region that covers [addr, end) touches the block of addr in its
// class, and its class is at least that of the range, so a look-up probes one
// key for each class in use that is large enough; which classes are in use is a
// bit mask. Most programs use one to three.
//
// Readers take no lock. What they rely on:
//   - start, end and access of a Region never change, and a Region is never
//     used again for something else (the garbage collector frees it), so what a
//     reader finds in an entry is either right or fails the comparison;
//   - the pointer is stored before the key, so a reader that sees the key sees
//     a pointer: the one, or that of a later user of the entry, or nil;
//   - a removed entry becomes a tombstone, so that probing goes on past it;
//   - a table that grows is replaced by another, and the old one is left as it
//     is: a reader in it may miss what is new and find what is dead. The dead
//     bit catches the second, the slow path, which holds the lock, the first.
type index struct {
	table   atomic.Pointer[table]
	classes atomic.Uint64 // bit c set: there are Regions of class c

	// guarded by Cache.mu
	perClass [64]int // Regions of each class
	regions  int     // Regions in the index
}

type table struct {
	entries []entry
	mask    uint64
	shift   uint
	used    int // entries that are not empty, tombstones counted; guarded by Cache.mu
}

type entry struct {
	key atomic.Uint64 // block and class; keyEmpty, keyGone
	reg atomic.Pointer[Region]
}

const (
	keyEmpty = 0
	keyGone  = 1

	minClass  = 6  // 64 bytes: below that, Regions share a class
	maxClass  = 63 // a Region of the whole address space: two blocks
	maxProbes = 32 // of one key by a reader, before it leaves it to the slow path
)

func classOf(length uint64) uint {
	return min(max(uint(bits.Len64(length-1)), minClass), maxClass)
}

// keyOf is unique for class and block, and larger than keyGone: the class is
// at least 6 and the block number leaves the six low bits free.
func keyOf(addr uint64, class uint) uint64 { return addr>>class<<6 | uint64(class) }

func (t *table) slot(key uint64) uint64 { return key * 0x9E3779B97F4A7C15 >> t.shift }

func newTable(size int) *table {
	return &table{entries: make([]entry, size), mask: uint64(size - 1), shift: uint(64 - bits.Len64(uint64(size-1)))}
}

func (x *index) init() { x.table.Store(newTable(64)) }

// find looks for a Region that covers [addr, end) with at least the access. It
// is the reader's side: no lock, bounded work, and nil proves nothing.
func (x *index) find(addr, end uint64, a hca.Access) *Region {
	t := x.table.Load()
	classes := x.classes.Load() >> classOf(end-addr) << classOf(end-addr)
	for ; classes != 0; classes &= classes - 1 {
		key := keyOf(addr, uint(bits.TrailingZeros64(classes)))
		i := t.slot(key)
		for range maxProbes {
			e := &t.entries[i&t.mask]
			k := e.key.Load()
			if k == key {
				r := e.reg.Load()
				if r != nil && r.start <= addr && end <= r.end && r.access&a == a {
					return r
				}
			} else if k == keyEmpty {
				break
			}
			i++
		}
	}
	return nil
}

// each calls f for every Region under key until f says stop. Cache.mu is held.
func (t *table) each(key uint64, f func(*Region) bool) bool {
	for i := t.slot(key); ; i++ {
		e := &t.entries[i&t.mask]
		switch e.key.Load() {
		case key:
			if !f(e.reg.Load()) {
				return false
			}
		case keyEmpty:
			return true
		}
	}
}

// findAll calls f for every Region that covers the whole of g, whatever its
// access, until f says stop. Cache.mu is held; f must not change the index.
func (x *index) findAll(g hca.Range, f func(*Region) bool) {
	t := x.table.Load()
	low := classOf(g.Len)
	for classes := x.classes.Load() >> low << low; classes != 0; classes &= classes - 1 {
		key := keyOf(g.Addr, uint(bits.TrailingZeros64(classes)))
		if !t.each(key, func(r *Region) bool { return !r.Range().Contains(g) || f(r) }) {
			return
		}
	}
}

// overlapping appends every Region that shares a byte with g to out. A Region
// may be appended twice. Cache.mu is held.
//
// It probes every block of g in every class in use, or reads the whole table if
// that is less.
func (x *index) overlapping(g hca.Range, out []*Region) []*Region {
	t := x.table.Load()
	probes := uint64(0)
	for classes := x.classes.Load(); classes != 0; classes &= classes - 1 {
		c := uint(bits.TrailingZeros64(classes))
		probes += (g.End()-1)>>c - g.Addr>>c + 1
	}
	if probes >= uint64(len(t.entries)) {
		for i := range t.entries {
			if k := t.entries[i].key.Load(); k > keyGone {
				if r := t.entries[i].reg.Load(); r.Range().Overlaps(g) {
					out = append(out, r)
				}
			}
		}
		return out
	}
	for classes := x.classes.Load(); classes != 0; classes &= classes - 1 {
		c := uint(bits.TrailingZeros64(classes))
		for block, last := g.Addr>>c, (g.End()-1)>>c; ; block++ {
			t.each(block<<6|uint64(c), func(r *Region) bool {
				if r.Range().Overlaps(g) {
					out = append(out, r)
				}
				return true
			})
			if block == last {
				break
			}
		}
	}
	return out
}

// all appends every Region in the index to out, once. Cache.mu is held.
func (x *index) all(out []*Region) []*Region {
	t := x.table.Load()
	for i := range t.entries {
		k := t.entries[i].key.Load()
		if k <= keyGone {
			continue
		}
		if r := t.entries[i].reg.Load(); k == keyOf(r.start, classOf(r.end-r.start)) {
			out = append(out, r)
		}
	}
	return out
}

// keys gives the one or two keys of r.
func (r *Region) keys() (first, last uint64) {
	c := classOf(r.end - r.start)
	return keyOf(r.start, c), keyOf(r.end-1, c)
}

// insert puts r in. Cache.mu is held.
func (x *index) insert(r *Region) {
	t := x.table.Load()
	if (t.used+2)*2 > len(t.entries) {
		t = x.rebuild()
	}
	c := classOf(r.end - r.start)
	if x.perClass[c]++; x.perClass[c] == 1 {
		x.classes.Store(x.classes.Load() | 1<<c)
	}
	x.regions++
	first, last := r.keys()
	t.put(first, r)
	if last != first {
		t.put(last, r)
	}
}

// remove takes r out, which must be in. It allocates nothing. Cache.mu is held.
func (x *index) remove(r *Region) {
	t := x.table.Load()
	first, last := r.keys()
	t.drop(first, r)
	if last != first {
		t.drop(last, r)
	}
	c := classOf(r.end - r.start)
	if x.perClass[c]--; x.perClass[c] == 0 {
		x.classes.Store(x.classes.Load() &^ (1 << c))
	}
	x.regions--
}

// rebuild makes a table without tombstones, at most a quarter full.
func (x *index) rebuild() *table {
	size := 64
	for size < (2*x.regions+2)*4 {
		size *= 2
	}
	t := newTable(size)
	for _, r := range x.all(nil) {
		first, last := r.keys()
		t.put(first, r)
		if last != first {
			t.put(last, r)
		}
	}
	x.table.Store(t)
	return t
}

func (t *table) put(key uint64, r *Region) {
	for i := t.slot(key); ; i++ {
		e := &t.entries[i&t.mask]
		switch e.key.Load() {
		case keyEmpty:
			t.used++
		case keyGone:
		default:
			continue
		}
		e.reg.Store(r)
		e.key.Store(key)
		return
	}
}

func (t *table) drop(key uint64, r *Region) {
	for i := t.slot(key); ; i++ {
		e := &t.entries[i&t.mask]
		if e.key.Load() == key && e.reg.Load() == r {
			// A tombstone before an empty entry ends no probe: make it empty.
			if t.entries[(i+1)&t.mask].key.Load() == keyEmpty {
				e.key.Store(keyEmpty)
				t.used--
			} else {
				e.key.Store(keyGone)
			}
			e.reg.Store(nil)
			return
		}
	}
}
