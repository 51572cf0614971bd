package regcache

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
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

// A Region that there was no slot for, and got again when there was one: it is out of
// the cache once, and of the View once.
func TestViewBothKeptAndNot(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{MaxMerge: 1})
	v := mustView(t, c, "v")
	var out []*Region
	for i := range uint64(viewSlots + 1) {
		out = append(out, viewGet(t, v, at(i, 1), 0))
	}
	both := out[viewSlots]
	v.Release(out[0])
	require.Same(t, both, viewGet(t, v, at(viewSlots, 1), 0))
	require.EqualValues(t, 2, both.state.Load()&stRefs)
	v.Release(both)
	v.Release(both)
	require.EqualValues(t, 1, both.state.Load()&stRefs, "that of the View, which holds it still")
	for _, r := range out[1:viewSlots] {
		v.Release(r)
	}
	require.NoError(t, v.Close())
	require.Zero(t, both.state.Load()&stRefs)
}

// A Region that lies across pages is found in the table by each page that it was asked
// for by, and by the page in which it begins, which is where Release looks.
func TestViewTableKnowsWhatWasKept(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{MaxMerge: 1})
	mustGet(t, c, at(3, 4), 0).Release()
	v := mustView(t, c, "v")
	v.last = 4 // so that it is not slot 0, which is what the table says at first
	r := viewGet(t, v, at(5, 1), 0)
	require.NotZero(t, v.last)
	for _, page := range []uint64{3, 5} {
		require.EqualValues(t, v.last, v.table[viewPage(at(page, 1).Addr)])
	}
	v.Release(r)
	v.Release(viewGet(t, v, at(6, 1), 0))
	require.EqualValues(t, v.last, v.table[viewPage(at(6, 1).Addr)])
	require.NoError(t, v.Close())
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

// Dead while they are out, because the owner said so: none of them is answered with
// any more, and each goes at its Release, also what was got last.
func TestViewRegionsDieWhileOut(t *testing.T) {
	for _, kind := range []hca.MemKind{hca.MemOwned, hca.MemForeign} {
		c, b, _ := rig(t, kind, Config{MaxMerge: 1})
		v := mustView(t, c, "v")
		old := []*Region{viewGet(t, v, at(0, 1), 0), viewGet(t, v, at(1, 1), 0), viewGet(t, v, at(2, 1), 0)}
		require.Equal(t, 3, c.Invalidate(at(0, 3)))
		for i := range old {
			fresh := viewGet(t, v, at(uint64(i), 1), 0)
			require.NotSame(t, old[i], fresh)
			v.Release(fresh)
		}
		for i := range old {
			v.Release(old[i])
			live, _, _ := b.counts()
			require.Equal(t, 5-i, live)
		}
		last := viewGet(t, v, at(1, 1), 0)
		c.Invalidate(at(1, 1))
		v.Release(last)
		live, _, _ := b.counts()
		require.Equal(t, 2, live)
		require.NoError(t, v.Close())
	}
}

// The recall count is looked at after the counter: an event that was counted before a
// Get and is applied while it looks makes it miss. (The other order is found out by a
// run in two or three: Get would have to be held up between its two looks.)
func TestViewLooksAtTheRecallCountLast(t *testing.T) {
	c, _, m := rig(t, hca.MemOwned, Config{})
	v := mustView(t, c, "v")
	var has, gone atomic.Uint64 // the number of the Region that the View has, and of that which is gone
	stop := make(chan struct{})
	rounds := uint64(3000)
	if debugging { // each Get takes far longer
		rounds = 300
	}
	go func() {
		defer close(stop)
		for n := uint64(1); n <= rounds; n++ {
			for has.Load() < n {
				runtime.Gosched()
			}
			m.put(at(0, 1))
			m.counter.Add(hca.CounterStep)
			gone.Store(n)
			c.mu.Lock()
			c.applyLocked()
			c.mu.Unlock()
		}
	}()
	defer func() {
		has.Store(math.MaxUint64)
		<-stop
	}()
	var last *Region
	for n := uint64(0); ; {
		select {
		case <-stop:
			require.NoError(t, v.Close())
			return
		default:
		}
		before := gone.Load()
		r := viewGet(t, v, at(0, 1), 0)
		if r == last {
			require.Less(t, before, n, "the Region was gone before it was asked for")
		} else {
			n++
			last = r
			has.Store(n)
		}
		v.Release(r)
	}
}

// A Region that was exported is deregistered while the View holds it.
func TestViewRegionIsRevoked(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{})
	v := mustView(t, c, "v")
	old := viewGet(t, v, at(0, 1), 0)
	x, err := old.Export()
	require.NoError(t, err)
	v.Release(old)
	c.Invalidate(at(0, 1))
	<-x.Revoked()
	fresh := viewGet(t, v, at(0, 1), 0)
	require.NotSame(t, old, fresh)
	v.Release(fresh)
	require.NoError(t, v.Close())
	_, _, twice := b.counts()
	require.Zero(t, twice)
}

// slot is where the View has r.
func (v *View) slot(r *Region) uint32 {
	return uint32(slices.IndexFunc(v.slots[:], func(s viewSlot) bool { return s.r == r }))
}

// alike are n pages that have one entry of a View's table.
func alike(n int) (pages []uint64) {
	for page := uint64(0); len(pages) < n; page++ {
		if viewPage(at(page, 1).Addr) == viewPage(at(0, 1).Addr) {
			pages = append(pages, page)
		}
	}
	return pages
}

// The table may say what it likes: the Region is the right one, to get and to give
// back, and is not got from the cache again.
func TestViewTableIsAHint(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{MaxMerge: 1})
	v := mustView(t, c, "v")
	pages := alike(viewSlots)
	var want []*Region
	for _, p := range pages {
		want = append(want, viewGet(t, v, at(p, 1), hca.LocalWrite))
	}
	v.Drop()
	hits := c.Stats().Hits
	for i, p := range pages { // each looks first where the one before was
		for range 2 {
			require.Same(t, want[i], viewGet(t, v, at(p, 1), 0))
			require.EqualValues(t, i, (v.last-v.slot(want[0]))%viewSlots)
			require.EqualValues(t, v.last, v.table[viewPage(at(p, 1).Addr)], "the next look is there")
		}
	}
	v.Drop()
	require.Equal(t, hits+2*viewSlots, c.Stats().Hits)
	for says := range 256 {
		for i, p := range pages {
			for k := range v.table {
				v.table[k] = uint8(says)
			}
			require.Same(t, want[i], viewGet(t, v, at(p, 1), hca.LocalWrite))
			for k := range v.table {
				v.table[k] = uint8(says)
			}
			v.Release(want[i])
		}
	}
	for range 3 {
		for _, r := range want {
			v.Release(r)
		}
	}
	_, made, _ := b.counts()
	require.Equal(t, viewSlots, made)
	require.NoError(t, v.Close())
	for _, r := range want {
		require.Zero(t, r.state.Load()&stRefs)
	}
}

// A slot that does not do for what is asked is not answered with, although the table
// says so.
func TestViewSlotMustDo(t *testing.T) {
	first := at(10, 2).Addr
	for _, ask := range []struct {
		g   hca.Range
		a   hca.Access
		err error
	}{
		{g: hca.Range{Addr: first - 1, Len: 2}},
		{g: at(9, 1)},
		{g: at(10, 3)},
		{g: at(11, 2)},
		{g: at(12, 1)},
		{g: hca.Range{Addr: first, Len: 2*pg + 1}},
		{g: at(10, 2), a: hca.RemoteRead},
		{g: hca.Range{Addr: first}, err: hca.ErrInvalid},
		{g: hca.Range{Addr: first, Len: -first}, err: hca.ErrInvalid},
		{g: hca.Range{Addr: first + pg, Len: math.MaxUint64}, err: hca.ErrInvalid},
	} {
		c, _, _ := rig(t, hca.MemOwned, Config{MaxMerge: 1})
		v := mustView(t, c, "v")
		r := viewGet(t, v, at(10, 2), 0)
		v.Release(r)
		for k := range v.table {
			v.table[k] = uint8(v.last)
		}
		other, err := v.Get(ask.g, ask.a)
		if ask.err == nil {
			require.NoError(t, err)
			require.NotSame(t, r, other)
			require.True(t, other.Range().Contains(ask.g) && other.Access().Has(ask.a))
			v.Release(other)
		}
		require.ErrorIs(t, err, ask.err)
		require.NoError(t, v.Close())
	}
}

// In whatever order they are given back, one of them got twice: what is out is
// counted, is not let go of, and is let go of when it is not out any more.
func TestViewReleasesInAnyOrder(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{MaxMerge: 1})
	pages := append(alike(2), 1)
	gets := []uint64{pages[0], pages[1], pages[0], pages[2]}
	permutations(len(gets), func(order []int) {
		v := mustView(t, c, "v")
		var got []*Region
		out := map[*Region]int{}
		for _, p := range gets {
			r := viewGet(t, v, at(p, 1), 0)
			got = append(got, r)
			out[r]++
		}
		for n, i := range order {
			if n%2 == 0 { // straight after a Get, or a Release
				v.Drop()
				for r, n := range out {
					require.Equal(t, n > 0, r.state.Load()&stRefs > 0, "%v", order)
				}
			}
			require.ErrorContains(t, v.Close(), fmt.Sprintf("%d Regions are out", len(gets)-n))
			v.Release(got[i])
			out[got[i]]--
		}
		v.Drop()
		for r := range out {
			require.Zero(t, r.state.Load()&stRefs)
		}
		require.NoError(t, v.Close())
	})
}

// permutations calls f with every order of n things.
func permutations(n int, f func([]int)) {
	order := make([]int, 0, n)
	var next func()
	next = func() {
		if len(order) == n {
			f(order)
			return
		}
		for i := range n {
			if !slices.Contains(order, i) {
				order = append(order, i)
				next()
				order = order[:len(order)-1]
			}
		}
	}
	next()
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

// BenchmarkViewAtRandom is View.Get and Release of a page in one of eight owned
// Regions in an order that no processor can foresee (the generator of BenchmarkView
// repeats its low bits soon enough to be learned), each given back at once or as the
// fourth from then.
func BenchmarkViewAtRandom(b *testing.B) {
	for _, k := range []struct {
		name          string
		pages, behind uint64
	}{{"pages=1", 1, 0}, {"pages=16", 16, 0}, {"pages=256", 256, 0}, {"pages=1/behind=4", 1, 4}} {
		b.Run(k.name, func(b *testing.B) {
			c, base, _ := benchCache(b, hca.MemOwned)
			v := mustView(b, c, "v")
			region := func(i uint64) hca.Range {
				return hca.Range{Addr: base.Addr + i*512*pg, Len: k.pages * pg}
			}
			for i := range uint64(2 * viewSlots) {
				v.Release(viewGet(b, v, region(i%viewSlots), hca.LocalWrite))
			}
			var out [4]*Region
			x := uint64(1)
			b.ResetTimer()
			for n := range uint64(b.N) {
				x ^= x << 13
				x ^= x >> 7
				x ^= x << 17
				r, _ := v.Get(hca.Range{Addr: region(x>>20%viewSlots).Addr + x>>40%k.pages*pg, Len: pg}, hca.LocalWrite)
				if k.behind == 0 {
					v.Release(r)
					continue
				}
				if n >= k.behind {
					v.Release(out[n%4])
				}
				out[n%4] = r
			}
			b.StopTimer()
			for i := range min(k.behind, uint64(b.N)) {
				v.Release(out[i])
			}
			if err := v.Close(); err != nil {
				b.Error(err)
			}
		})
	}
}
