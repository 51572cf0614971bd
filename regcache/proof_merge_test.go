package regcache

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"example.com/holdfast/hca"
)

// I6 for random programs with merging and widening on. Whatever the policy picks,
// no page is ever registered that nobody asked for, and nothing that was a hit
// becomes a miss because something wider took its place.
func TestModelMerging(t *testing.T) {
	program := func(t *rapid.T) {
		b, mon := &nopBackend{}, &scriptMonitor{}
		most := pg * rapid.SampledFrom([]uint64{1, 8, 16, 1000}).Draw(t, "MaxMerge")
		c, err := New(b, Config{
			Monitor: modelMonitor{mon}, MaxRegions: rapid.SampledFrom([]int{8, 12, 1000}).Draw(t, "MaxRegions"),
			MaxBytes: 1 << 40, MaxMerge: most, SweepEvery: -1,
		})
		require.NoError(t, err)
		var held []*Region
		defer func() {
			for _, r := range held {
				r.Release()
			}
			require.NoError(t, c.Close())
		}()
		var want hca.Range // what is being asked for
		var access hca.Access
		var kept []RegionInfo // when it began
		var fail []error
		var event *hca.Range
		var wrong string
		b.onRegister = func(g hca.Range, a hca.Access) error {
			for p := g.Addr; p < g.End(); p += pg {
				page, asked, may := hca.Range{Addr: p, Len: pg}, want.Contains(hca.Range{Addr: p, Len: pg}), access
				for _, r := range kept {
					asked = asked || r.Range.Contains(page)
					if r.Range.Overlaps(g) {
						may |= r.Access
					}
				}
				if !asked || !may.Has(a) {
					wrong = g.String() + " for " + a.String() + " when asked for " + want.String()
				}
			}
			if g != want && g.Len > most {
				wrong = g.String() + " is longer than MaxMerge"
			}
			if event != nil {
				mon.event(*event)
				event = nil
			}
			if len(fail) > 0 {
				err := fail[0]
				fail = fail[1:]
				return err
			}
			return nil
		}
		draw := func(t *rapid.T) hca.Range {
			return at(rapid.Uint64Range(0, 36).Draw(t, "page"), rapid.SampledFrom([]uint64{1, 1, 1, 1, 2, 3, 8}).Draw(t, "pages"))
		}
		get := func(t *rapid.T, g hca.Range) {
			a := rapid.SampledFrom(modelAccess).Draw(t, "access")
			want, access = g, a
			settle(c) // what an earlier Get of the same run has left
			kept = slices.DeleteFunc(c.Snapshot(), func(k RegionInfo) bool { return k.State != RegionIdle && k.State != RegionInUse })
			before := c.Stats()
			r, err := c.Get(g, a)
			require.Empty(t, wrong)
			if err != nil {
				require.ErrorIs(t, err, errInjected)
				return
			}
			require.True(t, r.Range().Contains(g) && r.Access().Has(a))
			held = append(held, r)
			settle(c)
			after := c.Stats()
			if after.Evictions != before.Evictions || after.Invalidations != before.Invalidations {
				return
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, k := range kept {
				require.NotNil(t, c.index.findLocked(k.Range, k.Access), "%v for %v was a hit", k.Range, k.Access)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"get":      func(t *rapid.T) { get(t, draw(t)) },
			"get more": func(t *rapid.T) { get(t, draw(t)) },
			"get a run": func(t *rapid.T) {
				from, step := rapid.Uint64Range(0, 20).Draw(t, "from"), rapid.Uint64Range(1, 2).Draw(t, "pages")
				for i := range rapid.Uint64Range(1, 12).Draw(t, "n") {
					get(t, at(from+i*step, step))
				}
			},
			"release": func(t *rapid.T) {
				for range rapid.IntRange(1, 10).Draw(t, "n") {
					if n := len(held); n > 0 {
						i := rapid.IntRange(0, n-1).Draw(t, "which")
						held[i].Release()
						held = append(held[:i], held[i+1:]...)
					}
				}
			},
			"event": func(t *rapid.T) { mon.event(draw(t)) },
			"event while registering": func(t *rapid.T) {
				g := draw(t)
				event = &g
			},
			"failure": func(*rapid.T) { fail = append(fail, errInjected) },
			"": func(t *rapid.T) {
				settle(c)
				require.NoError(t, invariants(c))
				live, made, twice := b.counts()
				s := c.Stats()
				require.Equal(t, s.Registered, live)
				require.EqualValues(t, s.Registrations, made)
				require.Zero(t, twice)
			},
		})
	}
	for range proofSize(t, 5, 500) {
		rapid.Check(t, program)
	}
}
