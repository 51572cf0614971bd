package regcache

import (
	"errors"
	"math"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const pg = 4096

// at is a range of pages in made-up address space, for tests in which nothing
// touches the memory.
func at(page, pages uint64) hca.Range {
	return hca.Range{Addr: 0x7f00_0000_0000 + page*pg, Len: pages * pg}
}

// rig is a cache on a scripted monitor and a backend that counts.
func rig(t *testing.T, kind hca.MemKind, cfg Config) (*Cache, *nopBackend, *scriptMonitor) {
	t.Helper()
	b, m := &nopBackend{}, &scriptMonitor{kind: kind}
	cfg.Monitor = m
	if cfg.SweepEvery == 0 {
		cfg.SweepEvery = -1 // the memory is made up: a sweep, which an eviction asks for, would find it gone
	}
	c, err := New(b, cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := c.Close(); !errors.Is(err, hca.ErrClosed) {
			require.NoError(t, err)
		}
		live, _, twice := b.counts()
		require.Zero(t, live, "registrations left after Close")
		require.Zero(t, twice, "registrations dropped twice")
	})
	return c, b, m
}

func mustGet(t *testing.T, c *Cache, g hca.Range, a hca.Access) *Region {
	t.Helper()
	r, err := c.Get(g, a)
	require.NoError(t, err)
	return r
}

// quiet waits until the reaper has nothing left to deregister.
func quiet(t *testing.T, c *Cache) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applyLocked()
	c.wake()
	for c.usage.dying > 0 {
		c.gone.Wait() // the test's own time limit bounds it
	}
}

func TestRegionLayout(t *testing.T) {
	require.EqualValues(t, 64, unsafe.Sizeof(Region{}), "a Region is one cache line")
}

func TestHitIsTheSameRegion(t *testing.T) {
	c, b, _ := rig(t, hca.MemForeign, Config{})
	r := mustGet(t, c, at(0, 16), hca.LocalWrite)
	r.Release()
	again := mustGet(t, c, hca.Range{Addr: at(3, 1).Addr + 5, Len: 100}, hca.LocalRead)
	require.Same(t, r, again)
	again.Release()
	_, made, _ := b.counts()
	require.Equal(t, 1, made)
	s := c.Stats()
	require.EqualValues(t, 1, s.Hits)
	require.EqualValues(t, 1, s.Misses)
	require.EqualValues(t, 16*pg, s.BytesPinned)
}

// C22: a request that is not inside one Region is not answered with one.
func TestC22_NoHitAcrossAGap(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{})
	mustGet(t, c, at(0, 1), 0).Release()
	mustGet(t, c, at(4, 1), 0).Release()
	for _, g := range []hca.Range{at(2, 1), at(0, 2), at(3, 2), at(0, 5)} {
		before := c.Stats().Misses
		r := mustGet(t, c, g, 0)
		require.True(t, r.Range().Contains(g), "%v does not cover %v", r.Range(), g)
		r.Release()
		require.Equal(t, before+1, c.Stats().Misses, "%v", g)
	}
	_, made, _ := b.counts()
	require.Equal(t, 6, made)
}

// C23: part of a Region has the Region's keys and its own address.
func TestC23_PartOfARegion(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{})
	whole := mustGet(t, c, at(0, 8), hca.LocalWrite|hca.RemoteWrite)
	part := mustGet(t, c, at(3, 1), hca.LocalWrite)
	require.Equal(t, whole.RKey(), part.RKey())
	require.Equal(t, at(3, 1).Addr, part.SGERange(at(3, 1)).Addr)
	require.Equal(t, whole.LKey(), part.SGERange(at(3, 1)).LKey)
	require.Panics(t, func() { part.SGERange(at(7, 2)) })
	require.Panics(t, func() { part.SGERange(hca.Range{Addr: math.MaxUint64 - 1, Len: 8}) })
	whole.Release()
	part.Release()
}

// C24: an event on the page right beside a Region leaves it alone, on both sides.
func TestC24_NeighbourGoes(t *testing.T) {
	c, _, m := rig(t, hca.MemForeign, Config{})
	r := mustGet(t, c, at(5, 3), 0)
	r.Release()
	m.event(at(8, 1))
	m.event(at(4, 1))
	again := mustGet(t, c, at(5, 3), 0)
	require.Same(t, r, again)
	again.Release()
	require.Zero(t, c.Stats().Invalidations)
	// and one byte of it does not
	m.event(hca.Range{Addr: at(8, 0).Addr - 1, Len: 1})
	again = mustGet(t, c, at(5, 3), 0)
	require.NotSame(t, r, again)
	again.Release()
	quiet(t, c)
	require.EqualValues(t, 1, c.Stats().Invalidations)
}

// C25: a hit among many takes no more steps than among few. What is counted is
// how many entries of the front a look-up reads.
func TestC25_StepsOfAHit(t *testing.T) {
	steps := func(n uint64) float64 {
		c, _, _ := rig(t, hca.MemOwned, Config{})
		for i := range n {
			mustGet(t, c, at(i*4, 2), 0).Release()
		}
		f := c.index.front.Load()
		total := 0
		for i := range n {
			g := at(i*4, 2)
			for k := range uint64(frontLine) {
				total++
				if f.entries[f.slot(g.Addr)^k].Load().covers(g.Addr, g.End(), 0) {
					break
				}
			}
		}
		return float64(total) / float64(n)
	}
	require.Less(t, steps(8192), 1.5*steps(16))
}

// C26: in a full cache the least recent entry is a hit and not evicted first.
func TestC26_FullCacheHitsTheOldest(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{MaxRegions: 4})
	var first *Region
	for i := range uint64(4) {
		r := mustGet(t, c, at(i*2, 1), 0)
		if i == 0 {
			first = r
		}
		r.Release()
	}
	r := mustGet(t, c, at(0, 1), 0)
	require.Same(t, first, r)
	r.Release()
	require.Zero(t, c.Stats().Evictions)
	// Now page 2 is the oldest, and the one that goes.
	mustGet(t, c, at(100, 1), 0).Release()
	require.EqualValues(t, 1, c.Stats().Evictions)
	misses := c.Stats().Misses
	mustGet(t, c, at(0, 1), 0).Release()
	require.Equal(t, misses, c.Stats().Misses)
	mustGet(t, c, at(2, 1), 0).Release()
	require.Equal(t, misses+1, c.Stats().Misses)
}

// What was hit since it was last looked at has a second chance; what had it goes
// in the order in which it was looked at.
func TestRecencyOrder(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{MaxRegions: 3})
	for i := range uint64(3) {
		mustGet(t, c, at(i*2, 1), 0).Release()
	}
	for _, i := range []uint64{1, 0, 1, 1} {
		mustGet(t, c, at(i*2, 1), 0).Release()
	}
	gone := func(i uint64) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.index.findLocked(at(i*2, 1), 0) == nil
	}
	mustGet(t, c, at(100, 1), 0).Release() // looks at 0 and 1, then finds 2
	require.Equal(t, []bool{false, false, true}, []bool{gone(0), gone(1), gone(2)})
	mustGet(t, c, at(0, 1), 0).Release()
	mustGet(t, c, at(102, 1), 0).Release() // looks at 0, then finds 1
	require.Equal(t, []bool{false, true, true}, []bool{gone(0), gone(1), gone(2)})
}

// C30: the limits hold for what is idle, by count and by bytes, with Regions in
// use, invalidated and used once in between.
func TestC30_Limits(t *testing.T) {
	for name, cfg := range map[string]Config{
		"count": {MaxRegions: 2},
		"bytes": {MaxBytes: 8 * pg},
		"both":  {MaxRegions: 2, MaxBytes: 8 * pg},
	} {
		t.Run(name, func(t *testing.T) {
			c, b, m := rig(t, hca.MemForeign, cfg)
			check := func() {
				t.Helper()
				s := c.Stats()
				require.LessOrEqual(t, s.Regions, 2)
				require.LessOrEqual(t, s.Registered, 2+s.InUseOnce)
				live, _, _ := b.counts()
				require.LessOrEqual(t, live, 2+s.InUseOnce)
			}
			var held []*Region
			for i := range uint64(50) {
				r := mustGet(t, c, at(i*8, 4), 0)
				check()
				switch i % 5 {
				case 0, 1, 2:
					r.Release()
				case 3:
					m.event(at(i*8, 4))
					r.Release()
				default:
					held = append(held, r)
				}
				check()
				if len(held) == 3 {
					for _, r := range held {
						r.Release()
						check()
					}
					held = nil
				}
			}
			for _, r := range held {
				r.Release()
			}
			check()
		})
	}
}

// A Region larger than the limit is used once and evicts nobody.
func TestLargerThanTheLimit(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{MaxBytes: 8 * pg})
	mustGet(t, c, at(0, 4), 0).Release()
	r := mustGet(t, c, at(100, 9), 0)
	require.Equal(t, hca.UnkeptLimit, r.UsedOnce())
	r.Release()
	s := c.Stats()
	require.Zero(t, s.Evictions)
	require.Equal(t, 1, s.Registered)
}

// A Region in use is never evicted; once it is idle, the limit holds for it.
func TestInUseIsNotEvicted(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{MaxRegions: 2})
	a := mustGet(t, c, at(0, 1), 0)
	b := mustGet(t, c, at(2, 1), 0)
	once := mustGet(t, c, at(4, 1), 0)
	require.Equal(t, hca.UnkeptLimit, once.UsedOnce())
	once.Release()
	a.Release()
	mustGet(t, c, at(6, 1), 0).Release() // evicts a
	b2 := mustGet(t, c, at(2, 1), 0)
	require.Same(t, b, b2)
	b2.Release()
	b.Release()
	require.EqualValues(t, 1, c.Stats().Evictions)
	require.Equal(t, 2, c.Stats().Regions)
}

// C18: many ask for the same cold range: one registration. If it fails all get
// the error, nothing is left, and the next works.
func TestC18_OneRegistration(t *testing.T) {
	for _, fails := range []bool{false, true} {
		c, b, _ := rig(t, hca.MemForeign, Config{})
		const n = 16
		broken := errors.New("injected")
		b.onRegister = func(hca.Range, hca.Access) error {
			for { // until all the others wait for this one
				c.mu.Lock()
				waiting := c.running
				c.mu.Unlock()
				if waiting == n {
					break
				}
			}
			if fails {
				return broken
			}
			return nil
		}
		var wg sync.WaitGroup
		errs := make([]error, n)
		for i := range n {
			wg.Go(func() {
				r, err := c.Get(at(0, 4), 0)
				if errs[i] = err; err == nil {
					r.Release()
				}
			})
		}
		wg.Wait()
		live, made, _ := b.counts()
		if fails {
			for _, err := range errs {
				require.ErrorIs(t, err, broken)
			}
			require.Zero(t, live)
			require.Zero(t, c.Stats().Registered)
			b.onRegister = nil
			mustGet(t, c, at(0, 4), 0).Release()
		} else {
			for _, err := range errs {
				require.NoError(t, err)
			}
			require.Equal(t, 1, made)
		}
		require.NoError(t, c.Close())
	}
}

// A failure because nothing was mapped is not shared: the one who waited may
// have mapped it since.
func TestJoinedBadAddressIsTriedAgain(t *testing.T) {
	c, b, _ := rig(t, hca.MemForeign, Config{})
	first := true
	b.onRegister = func(hca.Range, hca.Access) error {
		c.mu.Lock()
		was := first
		first = false
		c.mu.Unlock()
		for was {
			c.mu.Lock()
			waiting := c.running
			c.mu.Unlock()
			if waiting == 2 {
				return hca.ErrBadAddress
			}
		}
		return nil
	}
	errs := make(chan error, 2)
	for range 2 {
		go func() {
			r, err := c.Get(at(0, 1), 0)
			if err == nil {
				r.Release()
			}
			errs <- err
		}()
	}
	a, z := <-errs, <-errs
	if a == nil {
		a, z = z, a
	}
	require.ErrorIs(t, a, hca.ErrBadAddress)
	require.NoError(t, z)
}

// C12: a registration whose range goes away while the backend makes it is not
// published; neither one whose range goes between watching and registering.
func TestC12_GoneWhileRegistering(t *testing.T) {
	t.Run("in the backend", func(t *testing.T) {
		c, b, m := rig(t, hca.MemForeign, Config{})
		n := 0
		b.onRegister = func(hca.Range, hca.Access) error {
			if n++; n == 1 {
				m.event(at(1, 1))
			}
			return nil
		}
		r := mustGet(t, c, at(0, 4), 0)
		require.EqualValues(t, 2, r.LKey(), "the first registration may not be what is published")
		require.Equal(t, hca.KeptAllRight, r.UsedOnce())
		r.Release()
		require.EqualValues(t, 1, c.Stats().Redone)
	})
	t.Run("after it was watched", func(t *testing.T) {
		c, _, m := rig(t, hca.MemForeign, Config{})
		n := 0
		m.onWatch = func(g hca.Range) {
			if n++; n == 1 {
				m.event(g)
			}
		}
		r := mustGet(t, c, at(0, 4), 0)
		require.EqualValues(t, 2, r.LKey())
		r.Release()
	})
	t.Run("every time", func(t *testing.T) {
		c, b, m := rig(t, hca.MemForeign, Config{})
		b.onRegister = func(hca.Range, hca.Access) error { m.event(at(1, 1)); return nil }
		r := mustGet(t, c, at(0, 4), 0)
		require.Equal(t, hca.UnkeptUnsettled, r.UsedOnce())
		live, made, _ := b.counts()
		require.Equal(t, 1, live)
		require.Equal(t, maxAttempts, made)
		r.Release()
		require.Zero(t, c.Stats().Registered)
	})
	t.Run("still under way", func(t *testing.T) {
		for name, took := range map[string]hca.Range{"this": at(1, 1), "other memory": at(50, 1)} {
			t.Run(name, func(t *testing.T) {
				c, _, m := rig(t, hca.MemForeign, Config{})
				m.underWay.Store(true)
				r := mustGet(t, c, at(0, 4), 0)
				require.Equal(t, hca.KeptAllRight, r.UsedOnce())
				other := mustGet(t, c, at(0, 4), 0)
				require.Equal(t, hca.UnkeptUnsettled, other.UsedOnce(), "nobody else has it before it is known what is going")
				other.Release()
				m.event(took)
				m.underWay.Store(false)
				next := mustGet(t, c, at(0, 4), 0)
				require.Equal(t, hca.KeptAllRight, next.UsedOnce())
				require.Equal(t, took == at(50, 1), next == r)
				next.Release()
				r.Release()
				quiet(t, c)
				require.Equal(t, 1, c.Stats().Registered)
			})
		}
	})
}

// C13: the backend takes cached memory away itself, while it registers and
// while it deregisters: no hang, and what it took is out of the cache.
func TestC13_BackendTakesMemory(t *testing.T) {
	c, b, m := rig(t, hca.MemForeign, Config{MaxRegions: 3})
	mustGet(t, c, at(0, 1), 0).Release()
	mustGet(t, c, at(10, 1), 0).Release()
	b.onRegister = func(hca.Range, hca.Access) error { m.event(at(0, 1)); return nil }
	mustGet(t, c, at(20, 1), 0).Release()
	b.onRegister = nil
	misses := c.Stats().Misses
	mustGet(t, c, at(0, 1), 0).Release()
	require.Equal(t, misses+1, c.Stats().Misses)

	b.onDeregister = func(*hca.MR) error { m.event(at(20, 1)); return nil }
	mustGet(t, c, at(30, 1), 0).Release() // evicts page 10
	b.onDeregister = nil
	misses = c.Stats().Misses
	mustGet(t, c, at(20, 1), 0).Release()
	require.Equal(t, misses+1, c.Stats().Misses)
}

// C14: an event raised from inside what a miss does, at every place where it
// calls out.
func TestC14_EventInsideAMiss(t *testing.T) {
	c, b, m := rig(t, hca.MemForeign, Config{})
	for i := range uint64(mergeRun - 1) {
		mustGet(t, c, at(i, 1), 0).Release()
	}
	b.onRegister = func(hca.Range, hca.Access) error { m.event(at(50, 1)); return nil }
	m.onWatch = func(hca.Range) { m.event(at(51, 1)) }
	n := 0
	m.onProbe = func() {
		if n++; n == 1 {
			m.event(at(52, 1))
		}
	}
	r := mustGet(t, c, at(mergeRun-1, 1), 0)
	require.Equal(t, hca.KeptAllRight, r.UsedOnce())
	require.Equal(t, at(0, mergeRun), r.Range())
	require.Equal(t, 2, n, "what takes the place of others is probed")
	r.Release()
}

// C17: the same event twice deregisters once; Regions that overlap go together,
// others stay.
func TestC17_SameEventTwice(t *testing.T) {
	c, b, m := rig(t, hca.MemForeign, Config{})
	mustGet(t, c, at(0, 4), 0).Release()
	mustGet(t, c, at(2, 4), 0).Release()
	mustGet(t, c, at(8, 1), 0).Release()
	m.event(at(3, 1))
	m.event(at(3, 1))
	quiet(t, c)
	s := c.Stats()
	require.EqualValues(t, 2, s.Invalidations)
	require.EqualValues(t, 2, s.Deregistrations)
	require.Equal(t, 1, s.Regions)
	_, _, twice := b.counts()
	require.Zero(t, twice)
}

// C7, C8: a Region that is invalidated while it is held goes on working, is out
// of look-up at once, and is deregistered once, at its last Release; a new one
// of the same range lives its own life.
func TestC7_C8_HeldAndGone(t *testing.T) {
	c, b, m := rig(t, hca.MemForeign, Config{})
	old := mustGet(t, c, at(0, 64), 0)
	old2 := mustGet(t, c, at(5, 1), 0)
	require.Same(t, old, old2)
	m.event(at(30, 1))
	fresh := mustGet(t, c, at(0, 64), 0)
	require.NotSame(t, old, fresh)
	require.NotEqual(t, old.LKey(), fresh.LKey())
	quiet(t, c)
	live, _, _ := b.counts()
	require.Equal(t, 2, live, "the held one must still be registered")
	require.EqualValues(t, 64*pg, c.Stats().BytesDead)
	fresh.Release()
	old.Release()
	live, _, _ = b.counts()
	require.Equal(t, 2, live)
	old2.Release()
	live, _, _ = b.counts()
	require.Equal(t, 1, live, "deregistered when the last Release returns")
	require.Zero(t, c.Stats().BytesDead)
	again := mustGet(t, c, at(0, 64), 0)
	require.Same(t, fresh, again, "the end of the old one must not touch the new")
	again.Release()
}

func TestReleaseTwicePanics(t *testing.T) {
	c, _, m := rig(t, hca.MemForeign, Config{})
	r := mustGet(t, c, at(0, 1), 0)
	r.Release()
	require.Panics(t, r.Release)
	require.Equal(t, 1, c.Stats().Regions, "the cache must be as before")
	m.event(at(0, 1))
	quiet(t, c)
	require.Panics(t, r.Release)
}

// C10: a monitor that delivers nothing is refused, in words.
func TestC10_DeafMonitor(t *testing.T) {
	if testing.Short() {
		t.Skip("waits out the start-up check's limit of 5 s")
	}
	_, err := New(&nopBackend{}, Config{Monitor: &scriptMonitor{deaf: true}})
	require.ErrorIs(t, err, hca.ErrNotSupported)
	require.ErrorContains(t, err, "no event of that arrived")
}

// lateMonitor's counter is unsettled when the event of its exercise is announced, and
// settles later without a word.
type lateMonitor struct {
	*scriptMonitor
	looked chan struct{} // the cache has read the event
}

func (m lateMonitor) Exercise() (hca.Range, error) {
	m.counter.Add(1)
	go func() {
		<-m.looked
		m.counter.Add(^uint64(0))
	}()
	return m.scriptMonitor.Exercise()
}

func (m lateMonitor) Subscribe(wake func()) (hca.Feed, error) {
	f, err := m.scriptMonitor.Subscribe(wake)
	return &lateFeed{Feed: f, looked: m.looked}, err
}

type lateFeed struct {
	hca.Feed
	looked chan struct{}
	told   bool
}

func (f *lateFeed) Next(buf []hca.Event) int {
	n := f.Feed.Next(buf)
	if n == 0 && !f.told { // after the first look at all there is
		f.told = true
		close(f.looked)
	}
	return n
}

// A monitor is not refused because its counter settles some time after the event.
func TestMonitorThatSettlesLate(t *testing.T) {
	m := lateMonitor{&scriptMonitor{}, make(chan struct{})}
	c, err := New(&nopBackend{}, Config{Monitor: m})
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

// One whose counter never settles is refused, and that is said, not that it is deaf.
func TestMonitorThatNeverSettles(t *testing.T) {
	if testing.Short() {
		t.Skip("waits out the start-up check's limit of 5 s")
	}
	t.Parallel()
	m := &scriptMonitor{}
	m.counter.Add(1)
	_, err := New(&nopBackend{}, Config{Monitor: m})
	require.ErrorIs(t, err, hca.ErrNotSupported)
	require.ErrorContains(t, err, "it is still unsettled 5s after it took")
}

// C27: users who want different access alternate: two registrations at most.
func TestC27_AlternatingAccess(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{})
	var keys [2]uint32
	for range 1000 {
		r := mustGet(t, c, at(0, 4), hca.LocalWrite)
		s := mustGet(t, c, at(0, 4), hca.LocalWrite|hca.RemoteAtomic)
		require.True(t, r.Access().Has(hca.LocalWrite))
		require.True(t, s.Access().Has(hca.LocalWrite|hca.RemoteAtomic))
		keys = [2]uint32{r.LKey(), s.LKey()}
		r.Release()
		s.Release()
	}
	require.Equal(t, keys[0], keys[1], "one registration serves both in the end")
	_, made, _ := b.counts()
	require.Equal(t, 2, made)
}

// C29: what others want besides must not make a request fail, or them lose.
func TestC29_UnionRefused(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{})
	b.onRegister = func(_ hca.Range, a hca.Access) error {
		if a.Has(hca.LocalWrite) && a.Has(hca.RemoteRead) {
			return hca.ErrAccess
		}
		return nil
	}
	for range 10 {
		mustGet(t, c, at(0, 1), hca.RemoteRead).Release()
		mustGet(t, c, at(0, 1), hca.LocalWrite).Release()
	}
	_, made, _ := b.counts()
	require.Equal(t, 2, made)
}

// I7: the backend runs out of keys or memory: idle ones are given back and it is
// tried again; an error comes only when everything is in use.
func TestExhaustion(t *testing.T) {
	for _, cause := range []error{hca.ErrNoKeys, hca.ErrNoMemory} {
		c, b, _ := rig(t, hca.MemOwned, Config{})
		b.onRegister = func(hca.Range, hca.Access) error {
			if live, _, _ := b.counts(); live >= 4 {
				return &hca.OpError{Op: "register", Err: cause}
			}
			return nil
		}
		for i := range uint64(100) {
			mustGet(t, c, at(i*2, 1), 0).Release()
		}
		var held []*Region
		for i := range uint64(4) {
			held = append(held, mustGet(t, c, at(1000+i*2, 1), 0))
		}
		_, err := c.Get(at(2000, 1), 0)
		require.ErrorIs(t, err, cause)
		require.ErrorContains(t, err, "4 Regions")
		held[0].Release()
		mustGet(t, c, at(2000, 1), 0).Release()
		for _, r := range held[1:] {
			r.Release()
		}
		require.NoError(t, c.Close())
	}
}

// Those that are dying are waited for: their Deregister is slow, and nothing
// else is left to give back.
func TestExhaustionWaitsForTheDying(t *testing.T) {
	c, b, m := rig(t, hca.MemForeign, Config{})
	begun, goOn := make(chan struct{}), make(chan struct{})
	b.onDeregister = func(*hca.MR) error {
		close(begun)
		<-goOn
		return nil
	}
	b.onRegister = func(hca.Range, hca.Access) error {
		if live, _, _ := b.counts(); live > 0 {
			return hca.ErrNoKeys
		}
		return nil
	}
	mustGet(t, c, at(0, 1), 0).Release()
	m.event(at(0, 1))
	<-begun // in the reaper
	got := make(chan error)
	go func() {
		r, err := c.Get(at(2, 1), 0)
		if err == nil {
			r.Release()
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("did not wait: %v", err)
	case goOn <- struct{}{}:
	}
	b.onDeregister = nil
	require.NoError(t, <-got)
}

func TestCloseRefusesWhileInUse(t *testing.T) {
	c, _, m := rig(t, hca.MemForeign, Config{})
	a := mustGet(t, c, at(0, 1), 0)
	b := mustGet(t, c, at(2, 1), 0)
	m.event(at(2, 1))
	err := c.Close()
	require.ErrorIs(t, err, hca.ErrBusy)
	var busy *BusyError
	require.ErrorAs(t, err, &busy)
	require.Equal(t, 2, busy.Regions)
	mustGet(t, c, at(4, 1), 0).Release() // it works on
	a.Release()
	b.Release()
	require.NoError(t, c.Close())
	require.ErrorIs(t, c.Close(), hca.ErrClosed)
	_, err = c.Get(at(0, 1), 0)
	require.ErrorIs(t, err, hca.ErrClosed)
}

func TestBadInput(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{})
	for _, g := range []hca.Range{{}, {Addr: 5}, {Addr: math.MaxUint64, Len: 2}} {
		_, err := c.Get(g, 0)
		require.ErrorIs(t, err, hca.ErrInvalid)
	}
	_, err := c.GetBytes(nil, 0)
	require.ErrorIs(t, err, hca.ErrInvalid)
	_, err = c.Get(at(0, 1), hca.RemoteWrite)
	require.ErrorIs(t, err, hca.ErrInvalid)
	_, err = c.Get(at(0, 1), hca.OnDemand)
	require.ErrorIs(t, err, hca.ErrInvalid)
	_, made, _ := b.counts()
	require.Zero(t, made)
	_, err = New(nil, Config{})
	require.ErrorIs(t, err, hca.ErrInvalid)
	_, err = New(b, Config{MaxRegions: -1})
	require.ErrorContains(t, err, "MaxRegions")
}

// The zero Config keeps what it can know about and nothing else.
func TestZeroConfig(t *testing.T) {
	b := &nopBackend{}
	c, err := New(b, Config{})
	require.NoError(t, err)
	buf := make([]byte, 3*pg)
	r, err := c.GetBytes(buf, hca.LocalWrite)
	require.NoError(t, err)
	require.Equal(t, hca.MemHeld, r.Kind())
	require.Equal(t, hca.RangeOf(buf).Pages(pg), r.Range(), "the pages that hold it")
	r.Release()
	r2, err := c.GetBytes(buf[100:200], 0)
	require.NoError(t, err)
	require.Same(t, r, r2)
	r2.Release()
	r = mustGet(t, c, at(0, 1), 0)
	require.Equal(t, hca.UnkeptNoSource, r.UsedOnce())
	r.Release()
	require.Equal(t, 1, c.Stats().Registered)
	require.NoError(t, c.Close())
}

// A deregistration that fails is told: counted, and returned by Close.
func TestDeregistrationFails(t *testing.T) {
	b := &nopBackend{}
	c, err := New(b, Config{})
	require.NoError(t, err)
	broken := errors.New("injected")
	b.onDeregister = func(*hca.MR) error { return broken }
	r := mustGet(t, c, at(0, 1), 0)
	r.Release()
	require.EqualValues(t, 1, c.Stats().DeregisterErrors)
	require.ErrorIs(t, c.Close(), broken)
}

// A backend that registers less than it was asked for is found out.
func TestC35_ShortRegistration(t *testing.T) {
	c, err := New(shortBackend{&nopBackend{}}, Config{})
	require.NoError(t, err)
	_, err = c.Get(at(0, 4), 0)
	require.ErrorIs(t, err, hca.ErrNotSupported)
	require.ErrorContains(t, err, "only")
	require.NoError(t, c.Close())
}

type shortBackend struct{ *nopBackend }

func (b shortBackend) Register(g hca.Range, a hca.Access) (*hca.MR, error) {
	g.Len /= 2
	return b.nopBackend.Register(g, a)
}

func TestNoAllocationOnAHit(t *testing.T) {
	if debugging {
		t.Skip("a build that traces references allocates for each")
	}
	for _, kind := range []hca.MemKind{hca.MemOwned, hca.MemForeign} {
		c, _, _ := rig(t, kind, Config{})
		mustGet(t, c, at(0, 4), 0).Release()
		require.Zero(t, testing.AllocsPerRun(1000, func() {
			r, _ := c.Get(at(1, 1), 0)
			r.Release()
		}))
	}
	c, _, _ := rig(t, hca.MemOwned, Config{})
	buf := make([]byte, pg)
	r, err := c.GetBytes(buf, 0)
	require.NoError(t, err)
	r.Release()
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		r, _ := c.GetBytes(buf, 0)
		r.Release()
	}))
}

// A miss allocates the Region, its cold part, and what the backend does.
func TestAllocationsOfAMiss(t *testing.T) {
	if debugging {
		t.Skip("a build that traces references allocates for each")
	}
	for _, kind := range []hca.MemKind{hca.MemOwned, hca.MemForeign} {
		c, err := New(&bareBackend{}, Config{Monitor: &scriptMonitor{kind: kind}, MaxMerge: 1})
		require.NoError(t, err)
		n := uint64(0)
		require.EqualValues(t, 3, testing.AllocsPerRun(1000, func() {
			n += 2
			r, _ := c.Get(at(n, 1), 0)
			r.Release()
		}))
		require.EqualValues(t, n/2, c.Stats().Misses)
		require.NoError(t, c.Close())
	}
}

// I9, the bookkeeping half: events with no Get in between take no memory.
func TestC19_EventsTakeNoMemory(t *testing.T) {
	c, _, m := rig(t, hca.MemForeign, Config{})
	r := mustGet(t, c, at(0, 1), 0)
	r.Release()
	for i := range uint64(40000) {
		m.event(at(10+i%100, 1))
	}
	require.Same(t, r, mustGet(t, c, at(0, 1), 0))
	r.Release()
	require.Zero(t, c.Stats().Misses-1)
	m.event(at(0, 1)) // of related memory: it goes without any Get
	for deadline := time.After(20 * time.Second); ; {
		c.mu.Lock()
		n := c.usage.regions
		c.mu.Unlock()
		if n == 0 {
			break
		}
		select {
		case <-deadline:
			t.Fatal("still registered")
		default:
		}
	}
}

// Losing events is not losing them: everything that could have gone is out.
func TestLostEvents(t *testing.T) {
	c, _, m := rig(t, hca.MemForeign, Config{})
	r := mustGet(t, c, at(0, 1), 0)
	r.Release()
	buf := make([]byte, pg)
	h, err := c.GetBytes(buf, 0)
	require.NoError(t, err)
	h.Release()
	m.mu.Lock()
	m.events = append(m.events, hca.Event{Range: hca.Whole, Cause: hca.CauseLost})
	m.mu.Unlock()
	m.counter.Add(hca.CounterStep)
	r2 := mustGet(t, c, at(0, 1), 0)
	require.NotSame(t, r, r2)
	r2.Release()
	h2, err := c.GetBytes(buf, 0)
	require.NoError(t, err)
	require.Same(t, h, h2, "held memory has nothing to fear")
	h2.Release()
	require.EqualValues(t, 1, c.Stats().EventsLost)
}

// An on-demand backend answers with what it registered, whatever happens.
func TestFollowingBackend(t *testing.T) {
	b := &nopBackend{info: BackendInfo{Follows: true}}
	m := &scriptMonitor{kind: hca.MemForeign}
	c, err := New(wholeBackend{b}, Config{Monitor: m, MaxBytes: 1})
	require.NoError(t, err)
	r := mustGet(t, c, at(0, 1), hca.LocalWrite)
	m.event(at(0, 1))
	r2 := mustGet(t, c, at(123456, 789), hca.LocalWrite)
	require.Same(t, r, r2)
	r.Release()
	r2.Release()
	require.Zero(t, c.Stats().BytesPinned)
	require.NoError(t, c.Close())
}

type wholeBackend struct{ *nopBackend }

func (b wholeBackend) Register(_ hca.Range, a hca.Access) (*hca.MR, error) {
	return b.nopBackend.Register(hca.Whole, a|hca.OnDemand)
}
