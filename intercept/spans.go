package intercept

import "sort"

// span is a piece of address space, [lo,hi), on the event channels of dom.
type span struct {
	lo, hi uint64
	dom    uint32
}

// spans is a set of pieces of address space in order, none of which overlap.
// Neighbours of the same dom are one piece. Not safe for concurrent use.
type spans struct{ s []span }

// from is the index of the first piece that ends after addr.
func (t *spans) from(addr uint64) int {
	return sort.Search(len(t.s), func(i int) bool { return t.s[i].hi > addr })
}

// touches reports whether any byte of [lo,hi) is in the set.
func (t *spans) touches(lo, hi uint64) bool {
	i := t.from(lo)
	return i < len(t.s) && t.s[i].lo < hi
}

// covers reports whether every byte of [lo,hi) is in the set, and on which
// channels in all.
func (t *spans) covers(lo, hi uint64) (dom uint32, ok bool) {
	for i := t.from(lo); i < len(t.s) && t.s[i].lo <= lo; i++ {
		dom |= t.s[i].dom
		if lo = t.s[i].hi; lo >= hi {
			return dom, true
		}
	}
	return 0, false
}

// doms is all that the pieces that touch [lo,hi) are on.
func (t *spans) doms(lo, hi uint64) (dom uint32) {
	for i := t.from(lo); i < len(t.s) && t.s[i].lo < hi; i++ {
		dom |= t.s[i].dom
	}
	return dom
}

// within gives what of the set lies in [lo,hi), clipped to it.
func (t *spans) within(lo, hi uint64) []span {
	var in []span
	for i := t.from(lo); i < len(t.s) && t.s[i].lo < hi; i++ {
		in = append(in, span{max(lo, t.s[i].lo), min(hi, t.s[i].hi), t.s[i].dom})
	}
	return in
}

// cut takes [lo,hi) out of the set.
func (t *spans) cut(lo, hi uint64) {
	i := t.from(lo)
	j := i
	for j < len(t.s) && t.s[j].lo < hi {
		j++
	}
	if i == j {
		return
	}
	var rest [2]span
	n := 0
	if first := t.s[i]; first.lo < lo {
		rest[n] = span{first.lo, lo, first.dom}
		n++
	}
	if last := t.s[j-1]; last.hi > hi {
		rest[n] = span{hi, last.hi, last.dom}
		n++
	}
	t.splice(i, j, rest[:n])
}

// put adds [lo,hi) on dom, in place of what was there.
func (t *spans) put(lo, hi uint64, dom uint32) {
	if lo >= hi {
		return
	}
	t.cut(lo, hi)
	i := t.from(lo)
	j := i
	if j < len(t.s) && t.s[j].lo == hi && t.s[j].dom == dom {
		hi = t.s[j].hi
		j++
	}
	if i > 0 && t.s[i-1].hi == lo && t.s[i-1].dom == dom {
		i--
		lo = t.s[i].lo
	}
	t.splice(i, j, []span{{lo, hi, dom}})
}

// splice puts in in the place of pieces i to j.
func (t *spans) splice(i, j int, in []span) {
	switch tail := len(t.s) - j; {
	case len(in) <= j-i:
		copy(t.s[i:], in)
		copy(t.s[i+len(in):], t.s[j:])
		t.s = t.s[:i+len(in)+tail]
	default:
		t.s = append(t.s, in...) // room; what it holds is written over
		copy(t.s[i+len(in):], t.s[j:j+tail])
		copy(t.s[i:], in)
		t.s = t.s[:i+len(in)+tail]
	}
}

// clear empties the set.
func (t *spans) clear() { t.s = t.s[:0] }

// coarsen brings the set to about half its pieces by filling the smaller of
// the gaps between them. For sets where more is safe and less is not.
func (t *spans) coarsen() {
	if len(t.s) < 2 {
		return
	}
	gaps := make([]uint64, len(t.s)-1)
	for i := range gaps {
		gaps[i] = t.s[i+1].lo - t.s[i].hi
	}
	sort.Slice(gaps, func(i, j int) bool { return gaps[i] < gaps[j] })
	limit := gaps[len(gaps)/2]
	out := t.s[:1]
	for _, next := range t.s[1:] {
		last := &out[len(out)-1]
		if next.lo-last.hi <= limit {
			last.hi = next.hi
			last.dom |= next.dom
		} else {
			out = append(out, next)
		}
	}
	t.s = out
}
