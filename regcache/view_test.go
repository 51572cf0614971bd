package regcache

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

func mustView(t testing.TB, c *Cache, name string) *View {
	v, err := c.NewView(name)
	require.NoError(t, err)
	return v
}

func viewGet(t testing.TB, v *View, g hca.Range, a hca.Access) *Region {
	t.Helper()
	r, err := v.Get(g, a)
	require.NoError(t, err)
	return r
}

func TestViewHoldsWhatItUsed(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{MaxMerge: 1})
	v := mustView(t, c, "endpoint")
	for range 3 {
		for i := range uint64(viewSlots) {
			r := viewGet(t, v, at(i, 1), 0)
			require.Same(t, r, viewGet(t, v, at(i, 1), 0))
			v.Release(r)
			v.Release(r)
		}
	}
	s := c.Stats()
	require.EqualValues(t, viewSlots, s.Misses)
	require.Less(t, s.Hits, uint64(5*viewSlots), "the rest is the View's until it lets go")
	v.Drop()
	require.EqualValues(t, 5*viewSlots, c.Stats().Hits)
	_, made, _ := b.counts()
	require.Equal(t, viewSlots, made)
	require.NoError(t, v.Close())
	require.ErrorIs(t, v.Close(), hca.ErrClosed)
}

// More than it has slots for, all out at once: the rest is the cache's.
func TestViewFull(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{MaxMerge: 1})
	v := mustView(t, c, "full")
	var out []*Region
	for i := range uint64(3 * viewSlots) {
		out = append(out, viewGet(t, v, at(i, 1), 0))
	}
	require.ErrorIs(t, v.Close(), hca.ErrBusy)
	for _, r := range out {
		v.Release(r)
	}
	require.Panics(t, func() { v.Release(out[len(out)-1]) })
	require.NoError(t, v.Close())
	require.Equal(t, 3*viewSlots, c.Stats().Regions)
}

// Each script of the protocol, through a View: never the old Region.
func TestViewIsNeverStale(t *testing.T) {
	for _, kind := range []hca.MemKind{hca.MemOwned, hca.MemForeign} {
		for name, happen := range map[string]func(m *scriptMonitor, g hca.Range){
			"counted, not applied": func(m *scriptMonitor, g hca.Range) { m.put(g); m.counter.Add(hca.CounterStep) },
			"delivered":            func(m *scriptMonitor, g hca.Range) { m.event(g) },
			"part of it":           func(m *scriptMonitor, g hca.Range) { m.event(hca.Range{Addr: g.End() - 1, Len: 1}) },
			"between the looks": func(m *scriptMonitor, g hca.Range) {
				m.onProbe = func() { m.onProbe = nil; m.put(g); m.counter.Add(hca.CounterStep) }
			},
		} {
			if kind == hca.MemOwned && name == "between the looks" {
				continue // there is no probe
			}
			t.Run(fmt.Sprintf("%v/%s", kind, name), func(t *testing.T) {
				c, _, m := rig(t, kind, Config{})
				v := mustView(t, c, "v")
				old := viewGet(t, v, at(0, 2), 0)
				v.Release(old)
				happen(m, at(0, 2))
				fresh := viewGet(t, v, at(0, 2), 0)
				require.NotSame(t, old, fresh)
				v.Release(fresh)
				require.NoError(t, v.Close())
			})
		}
	}
}

// Held while it dies: the endpoint keeps what it has, and nothing leaks.
func TestViewRegionDiesWhileOut(t *testing.T) {
	c, b, m := rig(t, hca.MemOwned, Config{})
	v := mustView(t, c, "v")
	old := viewGet(t, v, at(0, 2), 0)
	m.event(at(0, 1))
	fresh := viewGet(t, v, at(0, 2), 0)
	require.NotSame(t, old, fresh)
	live, _, _ := b.counts()
	require.Equal(t, 2, live)
	v.Release(old)
	live, _, _ = b.counts()
	require.Equal(t, 1, live)
	v.Release(fresh)
	require.NoError(t, v.Close())
}

// What a View holds and its endpoint does not use comes back when the cache
// needs room; Close of the cache names Views that were forgotten.
func TestViewIsAskedBack(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{MaxRegions: 4, MaxMerge: 1})
	v := mustView(t, c, "forgotten")
	for i := range uint64(8) { // the second time they are there, and the View takes them all
		v.Release(viewGet(t, v, at(i%4, 1), 0))
	}
	once := mustGet(t, c, at(100, 1), 0)
	require.Equal(t, hca.UnkeptLimit, once.UsedOnce(), "they are in use")
	once.Release()
	v.Release(viewGet(t, v, at(0, 1), 0)) // heeds the wish
	r := mustGet(t, c, at(100, 1), 0)
	require.Equal(t, hca.KeptAllRight, r.UsedOnce())
	r.Release()
	err := c.Close()
	require.ErrorIs(t, err, hca.ErrBusy)
	require.ErrorContains(t, err, "forgotten")
	require.NoError(t, v.Close())
}

func TestViewErrors(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{})
	v := mustView(t, c, "v")
	for _, g := range []hca.Range{{}, {Addr: 1 << 63, Len: 1 << 63}} {
		_, err := v.Get(g, 0)
		require.ErrorIs(t, err, hca.ErrInvalid)
	}
	b.onRegister = func(hca.Range, hca.Access) error { return hca.ErrBadAddress }
	_, err := v.Get(at(0, 1), 0)
	require.ErrorIs(t, err, hca.ErrBadAddress)
	b.onRegister = nil
	buf := make([]byte, pg)
	r, err := v.GetBytes(buf, hca.LocalWrite)
	require.NoError(t, err)
	require.Equal(t, hca.MemHeld, r.Kind())
	wider := viewGet(t, v, hca.RangeOf(buf), hca.LocalWrite|hca.RemoteRead)
	require.True(t, wider.Access().Has(hca.RemoteRead))
	v.Release(wider)
	v.Release(r)
	require.NoError(t, v.Close())
	require.NoError(t, c.Close())
	_, err = c.NewView("late")
	require.ErrorIs(t, err, hca.ErrClosed)
}

// What a View holds is not in its own way: not when keys are short, and not when
// neighbours are to be merged. Closed, it serves nobody.
func TestViewIsNotInItsOwnWay(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{})
	b.onRegister = func(hca.Range, hca.Access) error {
		if live, _, _ := b.counts(); live >= viewSlots {
			return hca.ErrNoKeys
		}
		return nil
	}
	v := mustView(t, c, "v")
	for i := range uint64(64) {
		v.Release(viewGet(t, v, at(i*2, 1), 0))
	}
	b.onRegister = nil
	for i := range uint64(64) {
		v.Release(viewGet(t, v, at(1000+i, 1), 0))
	}
	require.NotZero(t, c.Stats().Merges)
	require.NoError(t, v.Close())
	_, err := v.Get(at(0, 1), 0)
	require.ErrorIs(t, err, hca.ErrClosed)
}

// Views and plain Gets against events and evictions; the books balance.
func TestViewStorm(t *testing.T) {
	c, b, m := rig(t, hca.MemForeign, Config{MaxRegions: 12})
	user := func(seed uint64) func(stop <-chan struct{}) {
		return func(stop <-chan struct{}) {
			v := mustView(t, c, fmt.Sprint(seed))
			rnd := rand.New(rand.NewPCG(seed, 1))
			var out []*Region
			for i := 0; ; i++ {
				select {
				case <-stop:
					for _, r := range out {
						v.Release(r)
					}
					if err := v.Close(); err != nil {
						t.Error(err)
					}
					return
				default:
				}
				r, err := v.Get(at(rnd.Uint64N(30), 1+rnd.Uint64N(3)), 0)
				if err != nil {
					t.Error(err)
					return
				}
				if out = append(out, r); len(out) > int(rnd.Uint64N(4)) {
					v.Release(out[0])
					out = out[1:]
				}
			}
		}
	}
	run(t, stormTime(t, 2*time.Second), user(1), user(2), user(3), func(stop <-chan struct{}) {
		for i := range uint64(20000) {
			select {
			case <-stop:
				return
			default:
				m.event(at(i*7%30, 1))
			}
		}
	})
	quiet(t, c)
	_, _, twice := b.counts()
	require.Zero(t, twice)
	require.Zero(t, c.Stats().InUseOnce)
}

func TestBatch(t *testing.T) {
	c, b, m := rig(t, hca.MemForeign, Config{MaxMerge: 1})
	probes := 0
	gs := []hca.Range{at(0, 1), at(5, 2), at(9, 1), at(5, 1)}
	out := make([]*Region, 4)
	require.NoError(t, c.GetBatch(gs, 0, out))
	for i, r := range out {
		require.True(t, r.Range().Contains(gs[i]))
		r.Release()
	}
	m.onProbe = func() { probes++ }
	require.NoError(t, c.GetBatch(gs, 0, out))
	require.Equal(t, 1, probes, "one for all")
	require.Same(t, out[1], out[3])
	for _, r := range out {
		r.Release()
	}
	hits := c.Stats().Hits
	// An event at the probe: none of them is answered with what was there.
	old := out[1]
	m.onProbe = func() { m.onProbe = nil; m.put(at(6, 1)); m.counter.Add(hca.CounterStep) }
	require.NoError(t, c.GetBatch(gs, 0, out))
	require.NotSame(t, old, out[1])
	for _, r := range out {
		r.Release()
	}
	require.Equal(t, hits+3, c.Stats().Hits, "hits that were undone do not count")

	// All or none.
	b.onRegister = func(g hca.Range, _ hca.Access) error {
		if g.Overlaps(at(50, 1)) {
			return hca.ErrBadAddress
		}
		return nil
	}
	err := c.GetBatch([]hca.Range{at(0, 1), at(40, 1), at(50, 1), at(60, 1)}, 0, out)
	require.ErrorIs(t, err, hca.ErrBadAddress)
	require.ErrorContains(t, err, "3 of 4")
	require.ErrorIs(t, c.GetBatch(gs, 0, out[:2]), hca.ErrInvalid)
	require.NoError(t, c.GetBatch(nil, 0, nil))
}

func TestNoAllocationInAViewOrBatch(t *testing.T) {
	if debugging {
		t.Skip("a build that traces references allocates for each")
	}
	c, _, _ := rig(t, hca.MemOwned, Config{})
	v := mustView(t, c, "v")
	v.Release(viewGet(t, v, at(0, 4), 0))
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		r, _ := v.Get(at(1, 1), 0)
		v.Release(r)
	}))
	gs, out := []hca.Range{at(0, 1), at(1, 1)}, make([]*Region, 2)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		_ = c.GetBatch(gs, 0, out)
		out[0].Release()
		out[1].Release()
	}))
	require.NoError(t, v.Close())
}

// BenchmarkView is View.Get and Release of one of n ranges in turn at random.
func BenchmarkView(b *testing.B) {
	for _, kind := range []hca.MemKind{hca.MemHeld, hca.MemOwned} {
		for _, n := range []uint64{1, viewSlots} {
			for _, threads := range []int{1, 2} {
				b.Run(fmt.Sprintf("%v/n=%d/goroutines=%d", kind, n, threads), func(b *testing.B) {
					c, base, mem := benchCache(b, kind)
					b.ResetTimer()
					var wg sync.WaitGroup
					for t := range threads {
						wg.Go(func() {
							v := mustView(b, c, fmt.Sprint(t))
							x := uint32(t)*7919 + 1
							for range b.N {
								x = x*1664525 + 1013904223
								off := uint64(x>>8) % n * benchStride
								var r *Region
								if mem != nil {
									r, _ = v.GetBytes(mem[off:off+benchLen], hca.LocalWrite)
								} else {
									r, _ = v.Get(hca.Range{Addr: base.Addr + off, Len: benchLen}, hca.LocalWrite)
								}
								v.Release(r)
							}
							if err := v.Close(); err != nil {
								b.Error(err)
							}
						})
					}
					wg.Wait()
				})
			}
		}
	}
}
