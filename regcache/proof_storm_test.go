package regcache

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// Storms: as much at once as the machine can do, and then the books must
// balance. In full (HOLDFAST_PROOF=full, -timeout 30m) 10^6 operations that take
// memory away.

// 64 goroutines on one cache whose limits are far too small for them, over pages
// of both kinds that are taken away all the time. Every answer is compared with
// what its asker had seen of the memory before he asked.
func TestProofStorm(t *testing.T) {
	const (
		pages      = 256
		goroutines = 64
		takers     = 4
	)
	events := int64(proofSize(t, 10_000, 1_000_000))
	h := newHost(pages, pages/2)
	h.yield = yielder(1)
	c, err := New(h, Config{Monitor: h, MaxRegions: 240, SweepEvery: -1})
	require.NoError(t, err)
	var gets, stale, taken atomic.Int64
	var stop atomic.Bool
	get := func(rnd *rand.Rand, held []*Region) []*Region {
		lo := rnd.Uint64N(pages)
		n := min(1+rnd.Uint64N(4), pages-lo)
		var seen [4]uint32
		for i := range n {
			seen[i] = h.generation(lo + i)
		}
		r, err := c.Get(at(lo, n), modelAccess[rnd.IntN(len(modelAccess))])
		if err != nil {
			t.Error(err)
			return held
		}
		gets.Add(1)
		p := pinOf(r)
		for i := range n {
			if lo+i < p.lo || lo+i >= p.hi || p.gens[lo+i-p.lo] < seen[i] || p.gone.Load() {
				stale.Add(1)
			}
		}
		return append(held, r)
	}
	users := func(id int) func(<-chan struct{}) {
		return func(<-chan struct{}) {
			rnd := rand.New(rand.NewPCG(uint64(id), 1))
			var held []*Region
			for !stop.Load() {
				if held = get(rnd, held); len(held) > rnd.IntN(4) {
					i := rnd.IntN(len(held))
					if pinOf(held[i]).gone.Load() {
						t.Error("deregistered while held")
						return
					}
					held[i].Release()
					held = append(held[:i], held[i+1:]...)
				}
				switch rnd.IntN(1000) {
				case 0:
					c.Stats()
				case 1:
					c.Trim(8 * pg)
				default:
					runtime.Gosched() // or a goroutine has the processor to itself for 10 ms
				}
			}
			for _, r := range held {
				r.Release()
			}
		}
	}
	taker := func(id int) func(<-chan struct{}) {
		return func(<-chan struct{}) {
			rnd := rand.New(rand.NewPCG(uint64(id), 2))
			for taken.Add(1) <= events {
				lo := rnd.Uint64N(pages)
				n := 1 + rnd.Uint64N(3)
				if lo < h.owned {
					n = min(n, h.owned-lo)
				}
				h.takeAway(lo, min(n, pages-lo))
				for gets.Load() < 3*taken.Load() { // in step with those who ask
					runtime.Gosched()
				}
			}
			stop.Store(true)
		}
	}
	var fs []func(<-chan struct{})
	for id := range goroutines {
		if id < takers {
			fs = append(fs, taker(id))
		} else {
			fs = append(fs, users(id))
		}
	}
	run(t, 25*time.Minute, fs...)
	h.dying.Wait()
	settle(c)
	require.Zero(t, stale.Load(), "answers that were stale when they were asked for")
	require.NoError(t, invariants(c))
	s := c.Stats()
	require.EqualValues(t, gets.Load(), s.Hits+s.Misses)
	require.Positive(t, s.Events)
	require.EqualValues(t, h.made.Load(), s.Registrations)
	require.EqualValues(t, h.live.Load(), s.Registered)
	require.Zero(t, s.InUseOnce)
	require.NoError(t, c.Close())
	require.Zero(t, h.live.Load())
	require.Zero(t, h.twice.Load())
	t.Logf("%d times memory went, %d events, %d Gets, %d hits, %d registrations, %d invalidations, %d evictions, %d merges, used once %v",
		events, s.Events, gets.Load(), s.Hits, s.Registrations, s.Invalidations, s.Evictions, s.Merges, s.UsedOnce)
}

// A hit takes its reference in the moment in which somebody evicts what it has
// found: one of the two sees the other.
func TestProofHitAgainstEviction(t *testing.T) {
	h := newHost(1, 1)
	c, err := New(h, Config{Monitor: h, SweepEvery: -1})
	require.NoError(t, err)
	var stop atomic.Bool
	n, hits := proofSize(t, 30_000, 5_000_000), 0
	run(t, 10*time.Minute, func(<-chan struct{}) {
		defer stop.Store(true)
		for evicted := 0; evicted < n; {
			r, err := c.Get(at(0, 1), 0)
			if err != nil {
				t.Error(err)
				return
			}
			r.Release()
			if c.Trim(1) > 0 {
				evicted++
			}
		}
	}, func(<-chan struct{}) {
		for g := at(0, 1); !stop.Load(); {
			r := c.hit(g.Addr, g.End(), 0, maxProbes)
			if r == nil {
				continue
			}
			hits++
			if pinOf(r).gone.Load() {
				t.Error("deregistered while held")
				return
			}
			r.Release()
		}
	})
	t.Logf("%d hits, %d evictions", hits, n)
	settle(c)
	require.NoError(t, invariants(c))
	require.NoError(t, c.Close())
	require.Zero(t, h.live.Load())
	require.Zero(t, h.twice.Load())
}

// ringMonitor keeps no more events than fit into its ring; a feed that is read
// too late is told that some are lost, as those of the real monitor are.
type ringMonitor struct {
	*scriptMonitor
	feed *ringFeed
}

func (m *ringMonitor) Subscribe(wake func()) (hca.Feed, error) {
	m.feed = &ringFeed{wake: wake}
	return m.feed, nil
}

func (m *ringMonitor) Exercise() (hca.Range, error) {
	g := at(0, 1)
	m.event(g)
	return g, nil
}

func (m *ringMonitor) event(g hca.Range) {
	m.feed.push(hca.Event{Range: g, Cause: hca.CauseUnmap})
	m.counter.Add(hca.CounterStep)
	m.feed.wake()
}

type ringFeed struct {
	wake func()
	mu   sync.Mutex
	ring [256]hca.Event // guarded by mu
	n    int            // guarded by mu
	lost bool           // guarded by mu
}

func (f *ringFeed) push(e hca.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n == len(f.ring) {
		f.n, f.lost = 0, true
	}
	f.ring[f.n] = e
	f.n++
}

func (f *ringFeed) Next(buf []hca.Event) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost {
		f.lost = false
		buf[0] = hca.Event{Range: hca.Whole, Cause: hca.CauseLost}
		return 1
	}
	n := copy(buf, f.ring[:f.n])
	f.n = copy(f.ring[:], f.ring[n:f.n])
	return n
}

func (f *ringFeed) Close() error { return nil }

// Events that come faster than they are applied cost nothing but being applied:
// no memory grows, and what was lost is treated as everything.
func TestProofStormOfEvents(t *testing.T) {
	m := &ringMonitor{scriptMonitor: &scriptMonitor{kind: hca.MemOwned}}
	b := &nopBackend{}
	c, err := New(b, Config{Monitor: m, SweepEvery: -1})
	require.NoError(t, err)
	events := uint64(proofSize(t, 100_000, 1_000_000))
	mustGet(t, c, at(1<<20, 1), 0).Release() // far away: only a loss takes it
	heap := func() uint64 {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before := heap()
	var stop atomic.Bool
	var gets atomic.Uint64
	storm := func(id uint64) func(<-chan struct{}) {
		return func(<-chan struct{}) {
			for i := range events / 2 {
				m.event(at((i*7+id)%4096, 1+i%3))
				if burst := 1 + i>>14%16*32; i%burst == 0 { // by turns less and more than the ring holds
					runtime.Gosched()
				}
				for gets.Load() < i/8 {
					runtime.Gosched()
				}
			}
			stop.Store(true)
		}
	}
	user := func(<-chan struct{}) {
		for i := uint64(0); !stop.Load(); i++ {
			r, err := c.Get(at(i%4096, 1), 0)
			if err != nil {
				t.Error(err)
				return
			}
			gets.Add(1)
			r.Release()
			runtime.Gosched()
		}
	}
	run(t, 25*time.Minute, storm(0), storm(1), user, user)
	settle(c)
	require.NoError(t, invariants(c))
	c.Invalidate(hca.Whole)
	settle(c)
	require.Less(t, heap(), before+2<<20, "the cache remembers events")
	s := c.Stats()
	require.EqualValues(t, gets.Load()+1, s.Hits+s.Misses)
	require.Zero(t, s.Registered)
	live, made, twice := b.counts()
	require.Zero(t, live)
	require.Zero(t, twice)
	require.EqualValues(t, made, s.Registrations)
	require.NoError(t, c.Close())
	t.Logf("%d events applied, %d losses, %d Gets", s.Events, s.EventsLost, gets.Load())
}
