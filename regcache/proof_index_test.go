package regcache

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"example.com/holdfast/hca"
)

// The index against a list: Regions of every length from one byte to the whole
// address space, at both ends of it, in crowds and alone.
func TestModelIndex(t *testing.T) {
	const end = math.MaxUint64
	draw := func(t *rapid.T) hca.Range {
		length := uint64(1)<<rapid.IntRange(0, 63).Draw(t, "log length") + rapid.Uint64Range(0, 2).Draw(t, "and") - 1
		length = max(length, 1)
		base := rapid.SampledFrom([]uint64{0, 1 << 12, 1 << 20, 1<<63 - 4096, 1 << 63, end - 1<<20, end - length}).Draw(t, "base")
		addr := base + rapid.SampledFrom([]uint64{0, 0, 1, 63, 64, 4096, 12345}).Draw(t, "offset")
		if addr < base {
			addr = base
		}
		return hca.Range{Addr: addr, Len: min(length, end-addr)}
	}
	program := func(t *rapid.T) {
		var x index
		x.init(pg)
		var list []*Region
		insert := func(g hca.Range, a hca.Access) {
			r := &Region{start: g.Addr, end: g.End(), access: a, cold: &cold{}}
			x.insert(r)
			list = append(list, r)
		}
		valid := func(t *rapid.T) hca.Range {
			g := draw(t)
			if !g.Valid() {
				t.Skip("empty")
			}
			return g
		}
		access := rapid.SampledFrom(modelAccess)
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) { insert(valid(t), access.Draw(t, "access")) },
			"insert a crowd": func(t *rapid.T) {
				g, step := valid(t), rapid.SampledFrom([]uint64{0, 1, 64, 4096}).Draw(t, "step")
				for range rapid.IntRange(1, 100).Draw(t, "n") {
					if insert(g, 0); g.End()+step < g.End() {
						break
					}
					g.Addr += step
				}
			},
			"remove": func(t *rapid.T) {
				n := min(len(list), rapid.IntRange(1, 60).Draw(t, "n"))
				for range n {
					i := rapid.IntRange(0, len(list)-1).Draw(t, "which")
					x.remove(list[i])
					list[i].kill()
					list = slices.Delete(list, i, i+1)
				}
			},
			"look up": func(t *rapid.T) {
				g, a := valid(t), access.Draw(t, "access")
				want := slices.ContainsFunc(list, func(r *Region) bool { return r.Range().Contains(g) && r.access.Has(a) })
				got := x.find(g.Addr, g.End(), a, math.MaxInt)
				require.Equal(t, want, got != nil, "%v", g)
				if got != nil {
					require.True(t, slices.Contains(list, got) && got.Range().Contains(g) && got.access.Has(a))
				}
				var all []*Region
				x.findAll(g, func(r *Region) bool { all = append(all, r); return true })
				sameRegions(t, list, all, func(r *Region) bool { return r.Range().Contains(g) })
			},
			"event": func(t *rapid.T) {
				g := valid(t)
				if rapid.IntRange(0, 9).Draw(t, "whole") == 0 {
					g = hca.Whole
				}
				sameRegions(t, list, x.overlapping(g, nil), func(r *Region) bool { return r.Range().Overlaps(g) })
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(list), x.regions)
				sameRegions(t, list, x.all(nil), func(*Region) bool { return true })
				require.NoError(t, frontIsRight(&x, func(r *Region) bool { return slices.Contains(list, r) }, true))
			},
		})
	}
	for range proofSize(t, 2, 200) {
		rapid.Check(t, program)
	}
}

// sameRegions: got is what the list has of it, each at least once.
func sameRegions(t *rapid.T, list, got []*Region, want func(*Region) bool) {
	seen := map[*Region]bool{}
	for _, r := range got {
		seen[r] = true
	}
	for _, r := range list {
		require.Equal(t, want(r), seen[r], "%v", r.Range())
		delete(seen, r)
	}
	require.Empty(t, seen, "Regions that are not in the list")
}

// frontIsRight: the front has Regions of the index and some that are dead, as hints only if
// nobody else was using the index, and has counted the hints. Nobody may be using it now.
func frontIsRight(x *index, in func(*Region) bool, alone bool) error {
	f, hints := x.front.Load(), 0
	for i := range f.entries {
		r := f.entries[i].Load()
		if r == nil {
			continue
		}
		dead, hint := r.state.Load()&stDead != 0, f.isHint(uint64(i), r)
		if hint {
			hints++
		}
		if in(r) == dead || alone && dead && !hint {
			return fmt.Errorf("%v is in the front; dead %v, hint %v, in the index %v", r.Range(), dead, hint, in(r))
		}
	}
	if n := int(f.hints.Load()); n != hints {
		return fmt.Errorf("%d hints in the front, which counts %d", hints, n)
	}
	return nil
}
