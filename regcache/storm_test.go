package regcache

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// run starts the functions, lets them go on until d is over, and waits for them
// with a hard limit, so that a hang is a failure.
func run(t *testing.T, d time.Duration, fs ...func(stop <-chan struct{})) {
	t.Helper()
	stop, done := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	for _, f := range fs {
		wg.Go(func() { f(stop) })
	}
	go func() { wg.Wait(); close(done) }()
	timer := time.AfterFunc(d, func() { close(stop) })
	defer timer.Stop()
	select {
	case <-done:
	case <-time.After(d + 30*time.Second):
		buf := make([]byte, 1<<20)
		t.Fatalf("hangs:\n%s", buf[:runtime.Stack(buf, true)])
	}
}

func stormTime(t *testing.T, full time.Duration) time.Duration {
	switch {
	case testing.Short():
		return full / 10
	case debugging:
		return full / 3
	}
	return full
}

// C15: eviction on one goroutine, at capacity 4 and always with fresh ranges,
// against unmapping on another.
func TestC15_EvictionAgainstUnmap(t *testing.T) {
	c, b, m := rig(t, hca.MemForeign, Config{MaxRegions: 4})
	var gets atomic.Uint64
	run(t, stormTime(t, 3*time.Second), func(stop <-chan struct{}) {
		for i := uint64(0); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			r, err := c.Get(at(i%1000*2, 1), 0)
			if err != nil {
				t.Error(err)
				return
			}
			gets.Add(1)
			r.Release()
		}
	}, func(stop <-chan struct{}) {
		for i := uint64(0); ; i++ {
			select {
			case <-stop:
				return
			default:
				m.event(at(i*7%1000*2, 3))
				runtime.Gosched()
				m.mu.Lock()
				if len(m.events) > 1<<16 {
					m.mu.Unlock()
					return // the script's list is not bounded; a real ring is
				}
				m.mu.Unlock()
			}
		}
	})
	quiet(t, c)
	s := c.Stats()
	require.Equal(t, gets.Load(), s.Hits+s.Misses)
	require.Equal(t, s.Registrations-s.Deregistrations, uint64(s.Registered))
	live, made, twice := b.counts()
	require.Equal(t, live, s.Registered)
	require.EqualValues(t, made, s.Registrations)
	require.Zero(t, twice)
}

// C16: two goroutines, 10^6 times the same buffer: one registration.
func TestC16_OneBufferTwoGoroutines(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{})
	n := 1_000_000
	if testing.Short() || debugging { // tracing makes each ten times as dear
		n /= 10
	}
	f := func(<-chan struct{}) {
		for range n {
			r, err := c.Get(at(0, 1), 0)
			if err != nil {
				t.Error(err)
				return
			}
			r.Release()
		}
	}
	run(t, 60*time.Second, f, f)
	_, made, _ := b.counts()
	require.Equal(t, 1, made)
	require.EqualValues(t, 2*n-1, c.Stats().Hits)
	require.EqualValues(t, 1, c.Stats().Misses)
}

// C20, the cache's half: the cache is closed while Gets run and events arrive.
func TestC20_CloseUnderLoad(t *testing.T) {
	for range 50 {
		c, _, m := rig(t, hca.MemForeign, Config{MaxRegions: 8})
		get := func(stop <-chan struct{}) {
			for i := uint64(0); ; i++ {
				select {
				case <-stop: // the closer had no luck so far: let it
					return
				default:
				}
				r, err := c.Get(at(i%20, 1), 0)
				if err != nil {
					if !isClosed(err) {
						t.Error(err)
					}
					return
				}
				r.Release()
			}
		}
		run(t, 50*time.Millisecond, get, get, func(stop <-chan struct{}) {
			for i := range uint64(50) {
				m.event(at(i%20, 2))
			}
		}, func(stop <-chan struct{}) {
			for {
				err := c.Close()
				if err == nil {
					return
				}
				if !isBusy(err) {
					t.Error(err)
					return
				}
				runtime.Gosched()
			}
		})
	}
}

// A Close that loses to a hit which began before takes nothing with it, and says
// who it lost to: the cache works on with all that it had, and with all its counts.
func TestCloseThatLosesTakesNothing(t *testing.T) {
	const kept = 64
	lost := 0
	for lost < 1000 && !t.Failed() {
		c, b, _ := rig(t, hca.MemOwned, Config{SweepEvery: -1})
		for i := range uint64(kept) {
			mustGet(t, c, at(i*2, 1), 0).Release()
		}
		var gets atomic.Uint64
		hit := func(<-chan struct{}) {
			for i := uint64(0); ; i++ {
				r, err := c.Get(at(i*i/64%kept*2, 1), 0) // each a few times in a row
				if err != nil {
					if !isClosed(err) {
						t.Error(err)
					}
					return
				}
				gets.Add(1)
				r.Release()
				if i%1024 == 0 {
					runtime.Gosched()
				}
			}
		}
		run(t, time.Minute, hit, hit, func(<-chan struct{}) {
			for {
				c.mu.Lock()
				busy := c.buryAllLocked() // of Close, the part that can lose
				n := c.index.regions
				if busy == nil {
					n = kept // they are the reaper's
				}
				c.mu.Unlock()
				if n != kept {
					t.Errorf("%d Regions of %d are left", n, kept)
				}
				if busy == nil {
					break
				}
				if lost++; busy.Regions == 0 || debugging && len(busy.Holders) < busy.Regions {
					t.Error(busy)
				}
			}
			for c.Close() != nil {
				runtime.Gosched()
			}
		})
		live, _, twice := b.counts()
		require.Zero(t, live)
		require.Zero(t, twice)
		s := c.Stats()
		require.EqualValues(t, kept+gets.Load(), s.Hits+s.Misses, "a hit is lost or invented where one is undone")
		require.EqualValues(t, s.Registrations, s.Deregistrations)
	}
	t.Logf("lost %d times", lost)
}

// C33: a great many distinct buffers under a limit: what is live stays within
// it, and the memory of the cache is flat.
func TestC33_DistinctBuffers(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{MaxRegions: 1000})
	n := uint64(1_000_000)
	if testing.Short() || debugging {
		n /= 10
	}
	var heap [2]uint64
	for i := range n {
		r, err := c.Get(at(i*2, 1), 0)
		if err != nil {
			t.Fatal(err)
		}
		r.Release()
		if i == n/10 || i == n-1 {
			var ms runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&ms)
			heap[i/(n-1)] = ms.HeapAlloc
			live, _, _ := b.counts()
			require.LessOrEqual(t, live, 1000)
		}
	}
	require.Less(t, heap[1], heap[0]+heap[0]/2+1<<20)
}

func isClosed(err error) bool { return errors.Is(err, hca.ErrClosed) }
func isBusy(err error) bool   { return errors.Is(err, hca.ErrBusy) }
