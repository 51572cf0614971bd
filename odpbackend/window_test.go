package odpbackend

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"example.com/holdfast/hca"
)

// Every buffer of up to half a window, at any address, lies in one window,
// and that window fits the device.
func TestEveryBufferOfHalfAWindowLiesInOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := uint64(1) << rapid.IntRange(20, 40).Draw(t, "log size")
		maxLen := rapid.Uint64Range(1<<20, 1<<42).Draw(t, "longest registration")
		g, ok := fit(size, maxLen)
		if !ok || g.size() > maxLen || g.size() > size {
			t.Fatalf("fit(%d, %d) = %d, %v", size, maxLen, g.size(), ok)
		}
		r := hca.Range{
			Addr: rapid.OneOf(
				rapid.Uint64Range(0, 1<<57),
				rapid.Uint64Range(^uint64(0)-4*g.half, ^uint64(0)-1),
				// at the seams, where a mistake would be
				rapid.Custom(func(t *rapid.T) uint64 {
					return rapid.Uint64Range(1, 1<<15).Draw(t, "seam")*g.half + rapid.Uint64Range(0, 4).Draw(t, "off") - 2
				}),
			).Draw(t, "address"),
			Len: rapid.OneOf(rapid.Uint64Range(1, g.half), rapid.Just(g.half), rapid.Just(uint64(1))).Draw(t, "length"),
		}
		if !r.Valid() {
			t.Skip("past the end of the address space")
		}
		i, ok := g.find(r)
		if !ok {
			t.Fatalf("no window for %v, windows of %d", r, g.size())
		}
		w := g.window(i)
		if !w.Contains(r) || w.Len > g.size() || !w.Valid() {
			t.Fatalf("%v lies in window %d, %v", r, i, w)
		}
	})
}

func TestNoWindow(t *testing.T) {
	g, ok := fit(1<<30, 0)
	require.True(t, ok)
	require.Equal(t, uint64(1<<30), g.size())
	_, ok = g.find(hca.Range{Addr: 1 << 29, Len: 1<<30 + 1})
	require.False(t, ok, "longer than a window")
	_, ok = g.find(hca.Range{Addr: 1<<29 + 1, Len: 1 << 30})
	require.False(t, ok, "sticks out of the window that starts below it")
	_, ok = g.find(hca.Range{Addr: 1 << 29, Len: 1 << 30})
	require.True(t, ok, "a whole window")
	_, ok = g.find(hca.Whole)
	require.False(t, ok)
	_, ok = g.find(hca.Range{})
	require.False(t, ok)
	_, ok = fit(1<<30, 1<<20-1)
	require.False(t, ok, "too small to be worth it")
	g, ok = fit(1<<30, 3<<20)
	require.True(t, ok)
	require.Equal(t, uint64(2<<20), g.size())
}
