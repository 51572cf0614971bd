package odpbackend

import (
	"math"
	"math/bits"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"example.com/holdfast/hca"
)

// warmth is the memory of what has been made ready, page by page. It forgets
// the oldest blocks where it would remember more than its limits allow. It has
// no lock of its own.
//
// A page is warm for one key: the device has translations for each
// registration, and pages made ready through one are not ready through
// another. It belongs to the key it was warmed through last.
type warmth struct {
	shift    uint // log2 of the page size
	maxPages int
	maxParts int
	lru      *simplelru.LRU[uint64, *block] // by page number / blockPages

	parts   int // of all blocks
	pages   int // warm now
	fresh   int // warm now and not used yet
	warmed  uint64
	useful  uint64
	useless uint64
}

// blockPages is how many pages one entry remembers: the bits of a word.
const blockPages = 64

// block is what is known of blockPages neighbouring pages: a part for each key
// that some of them are warm for, of which there is one as a rule, and as many as
// there are buffers where each has a registration of its own. It has no part
// without warm pages, and no page is in two.
type block struct {
	parts []part
	one   [1]part // of the first, so that one needs no memory of its own
}

// part has one bit for each page of a block. write and fresh are subsets of warm.
type part struct {
	lkey  uint32
	warm  uint64 // ready for reading at least
	write uint64 // ready for writing too
	fresh uint64 // made ready by a prefetch and not used since
}

// newWarmth remembers up to maxBytes of warm pages. It also keeps no more
// parts than would hold that much at a quarter full, some 180 bytes each with its
// block, so that pages scattered far apart do not make it large.
func newWarmth(pageSize, maxBytes uint64) *warmth {
	pages := max(maxBytes/pageSize, 1)
	w := &warmth{
		shift:    uint(bits.TrailingZeros64(pageSize)),
		maxPages: int(min(pages, math.MaxInt32)),
		maxParts: int(min(max(4*pages/blockPages, blockPages), math.MaxInt32)),
	}
	// The size never binds; NewLRU fails only for a size that is not positive.
	lru, err := simplelru.NewLRU[uint64, *block](math.MaxInt, nil)
	if err != nil {
		panic(err)
	}
	w.lru = lru
	return w
}

// numbers are the numbers of the first and the last page of r, which holds at
// least one byte.
func (w *warmth) numbers(r hca.Range) (first, last uint64) {
	return r.Addr >> w.shift, (r.End() - 1) >> w.shift
}

// mask has the bits of those pages from first to last that lie in block i.
func mask(i, first, last uint64) uint64 {
	m := ^uint64(0)
	if i == first/blockPages {
		m &= ^uint64(0) << (first % blockPages)
	}
	if i == last/blockPages {
		m &= ^uint64(0) >> (blockPages - 1 - last%blockPages)
	}
	return m
}

// cold is the part of s, in whole pages but not beyond s, from the first page
// that is not warm to the last; empty if all are warm. Asking makes what is
// warm recent.
func (w *warmth) cold(s hca.SGE, write bool) hca.Range {
	first, last := w.numbers(s.Range())
	from, to, found := uint64(0), uint64(0), false
	for i := first / blockPages; i <= last/blockPages; i++ {
		missing := mask(i, first, last)
		if p := w.part(i, s.LKey); p != nil {
			if write {
				missing &^= p.write
			} else {
				missing &^= p.warm
			}
		}
		if missing == 0 {
			continue
		}
		if !found {
			from, found = i*blockPages+uint64(bits.TrailingZeros64(missing)), true
		}
		to = i*blockPages + blockPages - 1 - uint64(bits.LeadingZeros64(missing))
	}
	if !found {
		return hca.Range{}
	}
	start, end := s.Addr, s.Range().End()
	if from > first {
		start = from << w.shift
	}
	if to < last {
		end = (to + 1) << w.shift
	}
	return hca.Range{Addr: start, Len: end - start}
}

// part is what is known of block i for a key, nil if nothing is. The block becomes
// recent.
func (w *warmth) part(i uint64, lkey uint32) *part {
	b, ok := w.lru.Get(i)
	if !ok {
		return nil
	}
	for k := range b.parts {
		if b.parts[k].lkey == lkey {
			return &b.parts[k]
		}
	}
	return nil
}

// add remembers that the pages of s are warm, for no other key.
func (w *warmth) add(s hca.SGE, write bool) {
	first, last := w.numbers(s.Range())
	for i := first / blockPages; i <= last/blockPages; i++ {
		m := mask(i, first, last)
		b, ok := w.lru.Get(i)
		if !ok {
			b = &block{}
			b.parts = b.one[:0]
			w.lru.Add(i, b)
		}
		w.drop(b, m, &s.LKey)
		p := w.part(i, s.LKey)
		if p == nil {
			b.parts = append(b.parts, part{lkey: s.LKey})
			w.parts++
			p = &b.parts[len(b.parts)-1]
		}
		more := m &^ p.warm
		n := bits.OnesCount64(more)
		w.pages += n
		w.fresh += n
		w.warmed += uint64(n)
		p.warm |= more
		p.fresh |= more
		if write {
			p.write |= m
		}
	}
	for w.pages > w.maxPages || w.parts > w.maxParts {
		_, b, ok := w.lru.RemoveOldest()
		if !ok {
			break
		}
		w.drop(b, ^uint64(0), nil)
	}
}

// use notes that a transfer went through the pages of s, and makes them recent.
func (w *warmth) use(s hca.SGE) {
	first, last := w.numbers(s.Range())
	w.each(first, last, func(i uint64) {
		p := w.part(i, s.LKey)
		if p == nil {
			return
		}
		hit := p.fresh & mask(i, first, last)
		p.fresh &^= hit
		n := bits.OnesCount64(hit)
		w.fresh -= n
		w.useful += uint64(n)
	})
}

// forget forgets the pages that share a byte with r, whatever their key.
func (w *warmth) forget(r hca.Range) {
	first, last := w.numbers(r)
	w.each(first, last, func(i uint64) {
		b, ok := w.lru.Peek(i)
		if !ok {
			return
		}
		w.drop(b, mask(i, first, last), nil)
		if len(b.parts) == 0 {
			w.lru.Remove(i)
		}
	})
}

// each calls do for the number of every block that may be known and has one of
// the pages from first to last: for all between, or for all that are known,
// whichever are fewer.
func (w *warmth) each(first, last uint64, do func(i uint64)) {
	if last/blockPages-first/blockPages < uint64(w.lru.Len()) {
		for i := first / blockPages; i <= last/blockPages; i++ {
			do(i)
		}
		return
	}
	if w.lru.Len() == 0 {
		return
	}
	for _, i := range w.lru.Keys() {
		if first/blockPages <= i && i <= last/blockPages {
			do(i)
		}
	}
}

// drop takes the pages of m out of b, but for those that are warm for the key spare
// (nil: whatever their key), and counts them out. A part that has none left is gone.
func (w *warmth) drop(b *block, m uint64, spare *uint32) {
	left := b.parts[:0]
	for _, p := range b.parts {
		if spare == nil || p.lkey != *spare {
			n := bits.OnesCount64(p.fresh & m)
			w.fresh -= n
			w.useless += uint64(n)
			w.pages -= bits.OnesCount64(p.warm & m)
			p.warm &^= m
			p.write &^= m
			p.fresh &^= m
		}
		if p.warm != 0 {
			left = append(left, p)
		}
	}
	w.parts -= len(b.parts) - len(left)
	b.parts = left
}
