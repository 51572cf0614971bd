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
// The table is made of groups of eight. A group has eight tags of one byte, in
// one word, and eight pointers to Regions, in one cache line: a look-up compares
// a word of tags at once, and follows a pointer only where the tag fits. So it
// waits for two cache lines, one after the other: the pointer and the Region;
// the tags of 65536 Regions fit in a second-level cache.
//
// Readers take no lock. What they rely on:
//   - start, end and access of a Region never change, and a Region is never
//     used again for something else (the garbage collector frees it), so what a
//     reader finds behind a tag is either right or fails the comparison;
//   - a pointer is stored before its tag; a removed one leaves a tombstone, so
//     that probing goes on past it;
//   - a table that grows is replaced by another, and the old one is left as it
//     is: a reader in it may miss what is new and find what is dead. The dead
//     bit catches the second, the slow path, which applies and looks under the
//     lock, the first.
type index struct {
	table   atomic.Pointer[table]
	classes atomic.Uint64 // bit c set: there are Regions of class c

	// guarded by Cache.mu
	perClass [64]int // Regions of each class
	regions  int     // Regions in the index
}

type table struct {
	tags  []atomic.Uint64 // of a group: eight bytes, the first in the low bits
	regs  []group
	mask  uint64 // groups - 1
	shift uint   // hash to group
	used  int    // tags that are not empty, tombstones counted; guarded by Cache.mu
}

type group [8]atomic.Pointer[Region]

const (
	tagEmpty = 0x00 // ends a probe
	tagGone  = 0x01 // a tombstone
	tagUsed  = 0x80 // set in the tag of a Region; seven bits of the hash with it

	eachByte = 0x0101010101010101
	highBits = 0x8080808080808080

	minClass = 6  // 64 bytes: below that, Regions share a class
	maxClass = 63 // a Region of the whole address space: two blocks

	// A hit looks at this many groups of a key before it leaves it to the slow
	// path; they are full only where many Regions of one size overlap.
	maxGroups = 4
)

func classOf(length uint64) uint {
	return min(max(uint(bits.Len64(length-1)), minClass), maxClass)
}

// keyOf is unique for class and block.
func keyOf(addr uint64, class uint) uint64 { return addr>>class<<6 | uint64(class) }

// hashOf spreads a key: the high bits choose the group, the low seven the tag.
func hashOf(key uint64) uint64 {
	hi, lo := bits.Mul64(key, 0x9E3779B97F4A7C15)
	return hi ^ lo
}

func tagOf(hash uint64) uint64 { return hash&0x7f | tagUsed }

// zeroBytes sets the high bit of every byte of w that is zero. It may also set
// that of a byte above one (a borrow), so a match has to be verified; whether
// there is any is exact.
func zeroBytes(w uint64) uint64 { return (w - eachByte) &^ w & highBits }

func newTable(groups int) *table {
	return &table{tags: make([]atomic.Uint64, groups), regs: make([]group, groups),
		mask: uint64(groups - 1), shift: uint(64 - bits.Len64(uint64(groups-1)))}
}

func (x *index) init() { x.table.Store(newTable(8)) }

// find looks for a Region that covers [addr, end) with at least the access. It
// is the readers' side: no lock, and nil proves nothing. It reads at most limit
// groups of each key.
func (x *index) find(addr, end uint64, a hca.Access, limit int) *Region {
	t := x.table.Load()
	c := classOf(end - addr)
	for classes := x.classes.Load() >> c << c; classes != 0; classes &= classes - 1 {
		h := hashOf(keyOf(addr, uint(bits.TrailingZeros64(classes))))
		tag := tagOf(h) * eachByte
		for i, n := h>>t.shift, 0; n < limit; i, n = i+1, n+1 {
			w := t.tags[i&t.mask].Load()
			for m := zeroBytes(w ^ tag); m != 0; m &= m - 1 {
				r := t.regs[i&t.mask][bits.TrailingZeros64(m)>>3].Load()
				if r != nil && r.start <= addr && end <= r.end && r.access&a == a {
					return r
				}
			}
			if zeroBytes(w) != 0 {
				break
			}
		}
	}
	return nil
}

// each calls f for every Region that may stand under key (and perhaps for others
// whose hash is alike) until f says stop. Cache.mu is held.
func (t *table) each(key uint64, f func(*Region) bool) bool {
	h := hashOf(key)
	for i := h >> t.shift; ; i++ {
		w := t.tags[i&t.mask].Load()
		for m := zeroBytes(w ^ tagOf(h)*eachByte); m != 0; m &= m - 1 {
			j := bits.TrailingZeros64(m) >> 3
			if byte(w>>(8*j)) == byte(tagOf(h)) && !f(t.regs[i&t.mask][j].Load()) {
				return false
			}
		}
		if zeroBytes(w) != 0 {
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

// overlapping appends every Region that shares a byte with g to out. A Region
// may be appended more than once. Cache.mu is held.
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
	keep := func(r *Region) bool {
		if r.Range().Overlaps(g) {
			out = append(out, r)
		}
		return true
	}
	if probes >= uint64(len(t.regs)) {
		t.walk(func(r *Region, _ uint64) { keep(r) })
		return out
	}
	for classes := x.classes.Load(); classes != 0; classes &= classes - 1 {
		c := uint(bits.TrailingZeros64(classes))
		for block, last := g.Addr>>c, (g.End()-1)>>c; ; block++ {
			t.each(keyOf(block<<c, c), keep)
			if block == last {
				break
			}
		}
	}
	return out
}

// walk calls f for every entry of the table with its tag. Cache.mu is held.
func (t *table) walk(f func(r *Region, tag uint64)) {
	for i := range t.regs {
		for m := t.tags[i].Load() & highBits; m != 0; m &= m - 1 {
			j := bits.TrailingZeros64(m) >> 3
			f(t.regs[i][j].Load(), t.tags[i].Load()>>(8*j)&0xff)
		}
	}
}

// all appends every Region in the index to out, once. Cache.mu is held.
func (x *index) all(out []*Region) []*Region {
	seen := len(out)
	x.table.Load().walk(func(r *Region, _ uint64) {
		if !r.cold.listed {
			r.cold.listed = true
			out = append(out, r)
		}
	})
	for _, r := range out[seen:] {
		r.cold.listed = false
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
	if (t.used+2)*4 > len(t.regs)*8*3 { // at most three quarters full
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

// rebuild makes a table without tombstones, at most three eighths full.
func (x *index) rebuild() *table {
	groups := 8
	for groups*8*3 < (2*x.regions+2)*8 {
		groups *= 2
	}
	t := newTable(groups)
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
	h := hashOf(key)
	for i := h >> t.shift; ; i++ {
		w := t.tags[i&t.mask].Load()
		free := ^w & highBits // tags without the high bit: empty or gone
		if free == 0 {
			continue
		}
		j := bits.TrailingZeros64(free) >> 3
		if byte(w>>(8*j)) == tagEmpty {
			t.used++
		}
		t.regs[i&t.mask][j].Store(r)
		t.tags[i&t.mask].Store(w&^(0xff<<(8*j)) | tagOf(h)<<(8*j))
		return
	}
}

func (t *table) drop(key uint64, r *Region) {
	h := hashOf(key)
	for i := h >> t.shift; ; i++ {
		w := t.tags[i&t.mask].Load()
		for m := zeroBytes(w ^ tagOf(h)*eachByte); m != 0; m &= m - 1 {
			j := bits.TrailingZeros64(m) >> 3
			if byte(w>>(8*j)) != byte(tagOf(h)) || t.regs[i&t.mask][j].Load() != r {
				continue
			}
			// In a group that ends probes anyway no tombstone is needed.
			gone := uint64(tagGone)
			if zeroBytes(w) != 0 {
				gone = tagEmpty
				t.used--
			}
			t.tags[i&t.mask].Store(w&^(0xff<<(8*j)) | gone<<(8*j))
			t.regs[i&t.mask][j].Store(nil)
			return
		}
	}
}
