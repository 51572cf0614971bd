//go:build linux && cgo && (amd64 || arm64 || riscv64 || loong64)

package intercept

import (
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/internal/childtest"
)

// One thread unmaps, another maps at the address as soon as it is free and
// asks at once: has the old memory gone? The counter alone does not know it
// most of the time, because nobody has read the event yet; the counter and the
// probe always do.
func TestProbeIsExact(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		rounds := 0
		runtime.GOMAXPROCS(8) // who spins must not keep the monitor's goroutines from running
		a := memory(t, 1)
		var g atomic.Uint64    // the counter when the memory was last known to be there
		var mine atomic.Uint32 // 0: the address belongs to the first thread; 1: being taken; 2: taken
		var byCounter, byProbe, missed int
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Add(1)
		go func() {
			defer wg.Done()
			runtime.LockOSThread()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if mine.Load() != 1 {
					yield()
					continue
				}
				if _, err := rawMmap(a.Addr, uintptr(a.Len), rw, private|unix.MAP_FIXED_NOREPLACE, -1, 0); err != nil {
					continue
				}
				// New memory is here. What does a hit on the old one see?
				switch was := g.Load(); {
				case m.counter.Load() != was:
					byCounter++
				case m.UnderWay(1<<len(m.kernel.fds)-1) || m.counter.Load() != was:
					byProbe++
				default:
					missed++
				}
				mine.Store(2)
			}
		}()
		runtime.LockOSThread()
		for began := time.Now(); rounds < 10_000 && time.Since(began) < 4*time.Second; rounds++ {
			w := watched(t, m, a)
			for m.UnderWay(w.Domains) {
				runtime.Gosched()
			}
			g.Store(settle(t, m))
			mine.Store(1)
			require.NoError(t, rawMunmap(a.Addr, uintptr(a.Len)))
			for mine.Load() != 2 {
				yield()
			}
			mine.Store(0)
			settle(t, m)
		}
		close(stop)
		wg.Wait()
		t.Logf("of %d remaps the counter showed %d and the probe %d more; %d were missed", rounds, byCounter, byProbe, missed)
		require.Zero(t, missed)
		require.Equal(t, rounds, byCounter+byProbe)
		require.Positive(t, byProbe, "the race was never hit: this test proved nothing")
	})
}

// A reader of a feed has, once Next answers 0, everything that a settled
// counter counted before. The counter counts single events, so it can be told.
func TestNextHandsOutWhatIsCounted(t *testing.T) {
	childtest.Run(t, 30*time.Second, fastExit, func(t *testing.T) {
		// One descriptor and several threads, so that one read takes several
		// events.
		m, err := UserfaultConfig(Config{Descriptors: 1})
		require.NoError(t, err)
		f, err := m.Subscribe(nil)
		require.NoError(t, err)
		base := settle(t, m) / hca.CounterStep
		before := m.Stats()
		var churn repeating
		// Nobody runs away from who reads: that would be an overflow.
		var handed atomic.Uint64
		behind := func() bool { return m.counter.Load()/hca.CounterStep-base-handed.Load() > 4096 }
		for i := range 5 {
			r := memory(t, 1)
			churn.start(func() {
				if behind() {
					runtime.Gosched()
					return
				}
				if i == 0 {
					m.Begin(r, hca.CauseDiscard).End()
					runtime.Gosched()
					return
				}
				m.Watch(r)
				if _, err := rawMmap(r.Addr, uintptr(r.Len), rw, private|unix.MAP_FIXED, -1, 0); err != nil {
					panic(err)
				}
			})
		}
		var got uint64
		var buf [5]hca.Event
		checks := 0
		several := func() bool { // reads that took more than one event
			s := m.Stats()
			return s.Unmaps-before.Unmaps >= s.Reads-before.Reads+10
		}
		for began := time.Now(); (checks < 20_000 || got < 5000 || !several()) && time.Since(began) < 10*time.Second; {
			g := m.counter.Load()
			if g&hca.Unsettled != 0 {
				continue
			}
			for n := f.Next(buf[:]); n > 0; n = f.Next(buf[:]) {
				require.NotEqual(t, hca.CauseLost, buf[n-1].Cause)
				got += uint64(n)
				handed.Store(got)
			}
			if got < g/hca.CounterStep-base {
				t.Fatalf("%d events counted, %d handed out", g/hca.CounterStep-base, got)
			}
			checks++
		}
		churn.end()
		counted := settle(t, m)/hca.CounterStep - base // a call returns before its event is in the ring
		for n := f.Next(buf[:]); n > 0; n = f.Next(buf[:]) {
			got += uint64(n)
		}
		require.Equal(t, counted, got, "each once")
		s := m.Stats()
		reads, reported := s.Reads-before.Reads, s.Unmaps-before.Unmaps
		t.Logf("%d checks, %d events, of which %d in %d reads", checks, got, reported, reads)
		require.Less(t, reads, reported, "no read took several: this test proved less than it should")
		require.GreaterOrEqual(t, got, uint64(5000))
		require.NoError(t, f.Close())
		require.NoError(t, m.Close())
	})
}

// Whatever happens, somebody is woken after it: the reader does not ring for
// each event, and none may fall between an answer to the bell and the next
// ring. The events come at any moment of the rest between two answers.
func TestWakeAfterEveryEvent(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		woken := make(chan struct{}, 1)
		f, err := m.Subscribe(func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		})
		require.NoError(t, err)
		a := memory(t, 64)
		watched(t, m, a)
		for round := range 600 {
			one := part(a, round%64, 1)
			for range round % 7 * 300 { // now here, now there
				m.counter.Load()
			}
			require.NoError(t, rawMadvise(one.Addr, uintptr(one.Len), unix.MADV_DONTNEED))
			for mine := false; !mine; {
				select {
				case <-woken:
				case <-time.After(5 * time.Second):
					t.Fatalf("round %d: nobody was woken", round)
				}
				mine = slices.Contains(drain(f), discardEvent(one))
			}
		}
		require.NoError(t, f.Close())
	})
}

// The Go heap is watched and the collector and the scavenger run all the time,
// with the world stopped among others. The reader must need none of them.
func TestReaderSurvivesGC(t *testing.T) {
	for _, procs := range []string{"GOMAXPROCS=1", "GOMAXPROCS=8"} {
		t.Run(procs, func(t *testing.T) {
			childtest.Run(t, 60*time.Second, append([]string{procs}, fastExit...), func(t *testing.T) {
				m, err := Userfault()
				require.NoError(t, err)
				debug.SetGCPercent(10)
				var churn repeating
				for range 4 {
					var keep [8][]byte
					i := 0
					churn.start(func() {
						b := make([]byte, 256<<10)
						b[0] = 1
						m.Watch(hca.RangeOf(b))
						keep[i%len(keep)] = b
						i++
					})
				}
				// Every other block is dropped: each is discarded by a call of
				// its own.
				for began := time.Now(); m.kernel.stats.Discards.Load() < 3000 && time.Since(began) < 20*time.Second; {
					blocks := make([][]byte, 1000)
					for i := range blocks {
						blocks[i] = make([]byte, 64<<10)
						blocks[i][0] = 1
						m.Watch(hca.RangeOf(blocks[i]))
					}
					for i := 0; i < len(blocks); i += 2 {
						blocks[i] = nil
					}
					debug.FreeOSMemory()
					runtime.KeepAlive(blocks)
				}
				churn.end()
				s := m.Stats()
				t.Logf("%d discards in %d reads, %d pieces in doubt", s.Discards, s.Reads, s.Taints)
				require.Greater(t, s.Discards, uint64(1000))
				require.NoError(t, m.kernel.fault())
				require.NoError(t, m.Close())
			})
		})
	}
}

// Children are started under load: none hangs, the parent goes on, and what
// they inherit is what they would have inherited without a monitor.
func TestExec(t *testing.T) {
	childtest.Run(t, 60*time.Second, fastExit, func(t *testing.T) {
		list := func() string {
			out, err := exec.Command("/bin/ls", "/proc/self/fd").Output()
			require.NoError(t, err)
			return string(out)
		}
		before := list()
		m, err := Userfault()
		require.NoError(t, err)
		var churn repeating
		var churned atomic.Int64
		r := memory(t, 4)
		churn.start(func() {
			m.Watch(r)
			if _, err := rawMmap(r.Addr, uintptr(r.Len), rw, private|unix.MAP_FIXED, -1, 0); err != nil {
				panic(err)
			}
			churned.Add(1)
		})
		block := make([]byte, 1<<20)
		watched(t, m, hca.RangeOf(block))
		for range 1000 {
			require.NoError(t, exec.Command("/bin/true").Run())
		}
		require.Equal(t, before, list())
		n := churned.Load()
		for began := time.Now(); churned.Load() == n; runtime.Gosched() {
			require.Less(t, time.Since(began), 5*time.Second, "the parent does not go on")
		}
		churn.end()
		runtime.KeepAlive(block)
		require.NoError(t, m.Close())
		require.False(t, strings.Contains(list(), "holdfast"))
	})
}

// Closed while threads unmap what it watches: nobody hangs on an event that
// nobody reads, and all that is asked afterwards has an answer.
func TestCloseWhileEventsArrive(t *testing.T) {
	childtest.Run(t, 60*time.Second, fastExit, func(t *testing.T) {
		for range 30 {
			m, err := Userfault()
			require.NoError(t, err)
			var churn repeating
			var n atomic.Int64
			for range 3 {
				r := memory(t, 4)
				churn.start(func() {
					w := m.Watch(r)
					m.UnderWay(w.Domains)
					if _, err := rawMmap(r.Addr, uintptr(r.Len), rw, private|unix.MAP_FIXED, -1, 0); err != nil {
						panic(err)
					}
					m.Begin(r, hca.CauseDiscard).End()
					_ = m.Settled(r)
					m.Kind(r)
					_, _ = m.Exercise()
					n.Add(1)
				})
			}
			for n.Load() < 20 {
				runtime.Gosched()
			}
			require.NoError(t, m.Close())
			after := n.Load()
			for n.Load() < after+20 {
				runtime.Gosched()
			}
			churn.end()
			require.True(t, m.UnderWay(1), "closed: nothing is proven")
			require.NotZero(t, m.Counter().Load()&hca.Unsettled)
		}
	})
}
