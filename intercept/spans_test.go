package intercept

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The set against an array of 64 cells.
func TestSpansAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const cells = 64
		var model [cells]uint32 // 0: not in the set
		var set spans
		coarse := false
		rng := func(t *rapid.T) (lo, hi uint64) {
			lo = rapid.Uint64Range(0, cells-1).Draw(t, "lo")
			return lo, rapid.Uint64Range(lo+1, cells).Draw(t, "hi")
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				lo, hi := rng(t)
				dom := rapid.Uint32Range(1, 3).Draw(t, "dom")
				set.put(lo, hi, dom)
				for i := lo; i < hi; i++ {
					model[i] = dom
				}
			},
			"cut": func(t *rapid.T) {
				lo, hi := rng(t)
				set.cut(lo, hi)
				for i := lo; i < hi; i++ {
					model[i] = 0
				}
			},
			"coarsen": func(t *rapid.T) {
				before := len(set.s)
				set.coarsen()
				if before >= 2 {
					require.LessOrEqual(t, len(set.s), before/2+1)
				}
				for i := range model { // nothing may be forgotten
					dom, ok := set.covers(uint64(i), uint64(i)+1)
					if model[i] != 0 {
						require.True(t, ok)
						require.Equal(t, model[i], model[i]&dom)
					}
					model[i] = dom
				}
				coarse = true
			},
			"": func(t *rapid.T) {
				for i := 1; i < len(set.s); i++ {
					a, b := set.s[i-1], set.s[i]
					require.Less(t, a.lo, a.hi)
					require.LessOrEqual(t, a.hi, b.lo)
					require.False(t, !coarse && a.hi == b.lo && a.dom == b.dom, "neighbours alike are one")
				}
				lo, hi := rng(t)
				touches, covers, dom := false, true, uint32(0)
				for i := lo; i < hi; i++ {
					touches = touches || model[i] != 0
					covers = covers && model[i] != 0
					dom |= model[i]
				}
				gotDom, gotCovers := set.covers(lo, hi)
				require.Equal(t, touches, set.touches(lo, hi))
				require.Equal(t, covers, gotCovers)
				if covers {
					require.Equal(t, dom, gotDom)
				}
				var n uint64
				for _, s := range set.within(lo, hi) {
					require.True(t, lo <= s.lo && s.lo < s.hi && s.hi <= hi)
					n += s.hi - s.lo
				}
				var want uint64
				for i := lo; i < hi; i++ {
					if model[i] != 0 {
						want++
					}
				}
				require.Equal(t, want, n)
			},
		})
	})
}
