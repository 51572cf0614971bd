package intercept

import (
	"math/bits"
	"sync/atomic"

	"example.com/holdfast/hca"
)

// Owned memory has counters of its own, here called words, so that a hit on it
// reads nothing that the end of other memory writes.
//
// Every piece of owned memory has one of them, which it keeps for as long as it
// is owned. An announcement that touches the piece raises its word, and then the
// monitor's counter, which counts everything. Watch answers with the word of the
// piece that a range lies in, and with none if it lies in pieces of different
// words: the monitor's counter serves for that.
//
// Words are given out in turn, so that the pieces that one user maps and unmaps
// all the time are spread over all of them, and seldom have that of a piece which
// stays.
//
// What has to hold is that a registration, which was made by Watch's answer, sees
// its word raised by whatever ends its memory. It does, because a piece leaves the
// ledger, or gets another word, only by an operation that is announced over it
// while it is still there. In particular what is owned already is not given
// another word when it is adopted again.

const (
	numWords = 32 // the bits of span.dom

	// manyPieces is when memory that becomes owned beside a piece gets the word of
	// that piece, so that the two become one.
	manyPieces = 1024
)

// own makes [lo,hi) owned, on the word of the one bit set in dom, or in turn if
// there is none. What of it is owned already stays as it is.
func (l *ledger) own(lo, hi uint64, dom uint32) {
	if dom == 0 {
		dom = l.nextDom(lo, hi)
	}
	for lo < hi {
		end := hi
		if i := l.owned.from(lo); i < len(l.owned.s) {
			if at := l.owned.s[i]; at.lo <= lo {
				lo = at.hi
				continue
			} else {
				end = min(hi, at.lo)
			}
		}
		l.owned.put(lo, end, dom)
		lo = end
	}
}

// nextDom chooses a word for [lo,hi).
func (l *ledger) nextDom(lo, hi uint64) uint32 {
	if len(l.owned.s) >= manyPieces {
		if i := l.owned.from(lo); i > 0 && l.owned.s[i-1].hi == lo {
			return l.owned.s[i-1].dom
		}
		if i := l.owned.from(hi); i < len(l.owned.s) && l.owned.s[i].lo == hi {
			return l.owned.s[i].dom
		}
	}
	l.turn++
	return 1 << (l.turn % numWords)
}

// raise raises the words in dom.
func (m *Monitor) raise(dom uint32) {
	for ; dom != 0; dom &= dom - 1 {
		m.words[bits.TrailingZeros32(dom)].word.Add(hca.CounterStep)
	}
}

// word is the word of memory on dom, nil if there is more than one.
func (m *Monitor) word(dom uint32) *atomic.Uint64 {
	if bits.OnesCount32(dom) != 1 {
		return nil
	}
	return &m.words[bits.TrailingZeros32(dom)].word
}
