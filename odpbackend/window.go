package odpbackend

import (
	"math/bits"

	"example.com/holdfast/hca"
)

// geometry places windows over the address space: window i starts at i times
// half a window. Neighbours overlap by half, so a buffer of up to half a window
// lies wholly in the window that starts in the half before its first byte, or
// at it.
type geometry struct {
	half uint64 // bytes, a power of two
}

// fit gives windows of size bytes, made smaller by halves until one fits into
// maxLen bytes (0: no limit). ok is false where that would make them too small
// to be worth it.
func fit(size, maxLen uint64) (g geometry, ok bool) {
	if maxLen != 0 && size > maxLen {
		size = 1 << (bits.Len64(maxLen) - 1)
	}
	return geometry{half: size / 2}, size >= minWindow
}

// size is the length of a window, bytes.
func (g geometry) size() uint64 { return g.half * 2 }

// find gives the number of the window in which r lies; ok is false where r is
// too long to lie in one, or runs past the end of the address space. Ranges
// longer than half a window that happen to lie in one are answered with it.
func (g geometry) find(r hca.Range) (index uint64, ok bool) {
	if !r.Valid() {
		return 0, false
	}
	index = r.Addr / g.half
	return index, g.window(index).Contains(r)
}

// window is the address space of window number index, cut at the last page of
// the 64-bit address space.
func (g geometry) window(index uint64) hca.Range {
	w := hca.Range{Addr: index * g.half, Len: g.size()}
	if w.Addr > ^uint64(0)-w.Len {
		w.Len = ^uint64(0) - w.Addr
	}
	return w
}
