package odpbackend_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
	"example.com/holdfast/hcasim"
	"example.com/holdfast/intercept"
	"example.com/holdfast/internal/childtest"
	"example.com/holdfast/odpbackend"
)

// The prefetcher on real memory: what is resident is asked of the kernel.

const kernelPage = 4096

// ptr is an address as the pointer that raw calls want.
func ptr(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// rig is two live devices that can prefetch, and a Prefetcher over the first.
type rig struct {
	a, b *hcasim.Device
	p    *odpbackend.Prefetcher
	q    *odpbackend.Queue
	gate *gate // nil: none
}

// gate is a live device whose completions of posted work are held back while
// it is shut: what it was told to do is done all the same.
type gate struct {
	*hcasim.Device
	mu   sync.Mutex
	open chan struct{}
}

type gatedCQ struct {
	hca.CQ
	g *gate
}

func (g *gate) NewCQ(n int) (hca.CQ, error) {
	cq, err := g.Device.NewCQ(n)
	return &gatedCQ{cq, g}, err
}

func (g *gate) PostAdvise(cq hca.CQ, id uint64, advice hca.Advice, sgl []hca.SGE) error {
	return g.Device.PostAdvise(cq.(*gatedCQ).CQ, id, advice, sgl)
}

func (c *gatedCQ) opened() chan struct{} {
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	return c.g.open
}

func (c *gatedCQ) Poll(wc []hca.WC) (int, error) {
	select {
	case <-c.opened():
		return c.CQ.Poll(wc)
	default:
		return 0, nil
	}
}

func (c *gatedCQ) Wait(ctx context.Context) error {
	select {
	case <-c.opened():
		return c.CQ.Wait(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// shut holds completions back until the answer is called.
func (g *gate) shut() (opened func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	open := make(chan struct{})
	g.open = open
	return sync.OnceFunc(func() { close(open) })
}

// withPrefetcher runs body in a child with a live device and a Prefetcher.
func withPrefetcher(t *testing.T, cfg odpbackend.PrefetchConfig, gated bool, body func(t *testing.T, r *rig)) {
	withPrefetcherOn(t, hcasim.FabricConfig{}, cfg, gated, body)
}

func withPrefetcherOn(t *testing.T, on hcasim.FabricConfig, cfg odpbackend.PrefetchConfig, gated bool, body func(t *testing.T, r *rig)) {
	childtest.Run(t, liveLimit, []string{"GORACE=atexit_sleep_ms=0"}, func(t *testing.T) {
		fab, err := hcasim.NewFabric(on)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, fab.Close()) })
		r := &rig{}
		for _, d := range []**hcasim.Device{&r.a, &r.b} {
			*d, err = hcasim.Open(hcasim.Live{Fabric: fab})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, (*d).Close(), "no registration is left") })
		}
		if !r.a.Attr().ODP.Prefetch {
			t.Skip("the kernel has no MADV_POPULATE_READ (Linux 5.14)")
		}
		var dev hca.Device = r.a
		if gated {
			r.gate = &gate{Device: r.a}
			r.gate.shut()() // that is, open
			dev = r.gate
		}
		r.p, err = odpbackend.NewPrefetcher(dev, cfg)
		require.NoError(t, err)
		r.q, err = odpbackend.NewQueue(4096)
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, r.p.Close())
			require.NoError(t, r.q.Close())
			s := r.p.Stats()
			require.Zero(t, s.Outstanding)
			require.Equal(t, s.Requests, s.Warm+s.Done+s.Failed+s.Flushed)
			t.Log(s)
		})
		body(t, r)
	})
}

// done waits for n completions and answers with them by id.
func (r *rig) done(t *testing.T, n int) map[uint64]hca.WC {
	t.Helper()
	wcs := map[uint64]hca.WC{}
	for len(wcs) < n {
		wc := hcatest.Next(t, r.q)
		require.NotContains(t, wcs, wc.ID, "completed twice")
		wcs[wc.ID] = wc
	}
	hcatest.Quiet(t, r.q)
	return wcs
}

func TestLivePrefetcherMakesReadyWhatWasAskedFor(t *testing.T) {
	for name, on := range map[string]hcasim.FabricConfig{"full": {}, "lesser": {Lesser: true}} {
		t.Run(name, func(t *testing.T) { testMakesReady(t, on) })
	}
}

func testMakesReady(t *testing.T, on hcasim.FabricConfig) {
	withPrefetcherOn(t, on, odpbackend.PrefetchConfig{}, false, func(t *testing.T, r *rig) {
		const pages = 256
		m := hcatest.Map(t, 2*pages*kernelPage)
		mr := hcatest.Register(t, r.a, m[:pages*kernelPage], hcatest.Everything|hca.OnDemand)
		require.Zero(t, resident(t, m))
		// In pieces that overlap, as a library that prefetches message by
		// message does.
		for i := range pages {
			from, to := max(i-1, 0)*kernelPage, (i+1)*kernelPage-7
			require.NoError(t, r.p.Post(r.q, uint64(i), hcatest.SGE(mr, m[from:to]), true))
		}
		for id, wc := range r.done(t, pages) {
			require.NoError(t, wc.Err, "request %d", id)
		}
		require.Equal(t, pages, resident(t, m))
		require.Equal(t, resident(t, m[:pages*kernelPage]), pages)
		s := r.p.Stats()
		require.EqualValues(t, pages, s.WarmedPages)
		require.LessOrEqual(t, s.Advises, uint64(pages))

		// What a transfer goes through was of use.
		x, _ := hcatest.Connect(t, r.a, r.b, hca.QPConfig{})
		far := hcatest.Register(t, r.b, hcatest.Map(t, kernelPage), hcatest.Everything)
		sge := hcatest.SGE(mr, m[:kernelPage])
		r.p.Used(sge)
		require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMARead, SGE: sge, Remote: hca.RemoteAddr{Addr: far.Range.Addr, RKey: far.RKey}}))
		hcatest.Want(t, x.SendCQ, 1, hca.WCSuccess)
		require.EqualValues(t, 1, r.p.Stats().UsefulPages)

		// A second time costs no call.
		require.NoError(t, r.p.Post(r.q, 1, hcatest.SGE(mr, m[:pages*kernelPage]), false))
		require.NoError(t, r.done(t, 1)[1].Err)
		require.Equal(t, s.Advises, r.p.Stats().Advises)
	})
}

// C36: prefetches against somebody who throws the same pages away all the
// time. Every one completes, none is an error to whoever transfers, and
// retries are bounded.
func TestLivePrefetcherAgainstDiscards(t *testing.T) {
	withPrefetcher(t, odpbackend.PrefetchConfig{InFlight: 4}, false, func(t *testing.T, r *rig) {
		const pages, rounds = 64, 3000
		m := hcatest.Map(t, pages*kernelPage)
		mr := hcatest.Register(t, r.a, m, hcatest.Everything|hca.OnDemand)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := unix.Madvise(m, unix.MADV_DONTNEED); err != nil {
					t.Error(err)
					return
				}
			}
		})
		for i := range rounds {
			from := i % pages * kernelPage
			require.NoError(t, r.p.Post(r.q, uint64(i), hcatest.SGE(mr, m[from:]), i%2 == 0))
			if i%4 == 3 {
				r.p.Forget(hca.RangeOf(m)) // or most would be answered without a call
				for id, wc := range r.done(t, 4) {
					if wc.Err != nil { // the device may have found it busy every time
						require.ErrorIs(t, wc.Err, hca.ErrAgain, "request %d", id)
					}
				}
			}
		}
		close(stop)
		wg.Wait()
		s := r.p.Stats()
		require.LessOrEqual(t, s.Retries, uint64(8*(rounds+s.Failed)))
		require.Greater(t, s.Advises, uint64(rounds/10), "the discards made prefetches necessary")

		// Quiet again: a prefetch and a transfer are as they should be.
		r.p.Forget(hca.Whole)
		require.NoError(t, r.p.Post(r.q, 1, hcatest.SGE(mr, m), true))
		require.NoError(t, r.done(t, 1)[1].Err)
		require.Equal(t, pages, resident(t, m))
	})
}

// C37: the range is unmapped while its prefetch waits. It completes with a
// status, the device never hears of it if the prefetcher did, and what is
// mapped there next is not touched.
func TestLivePrefetcherOfMemoryThatIsUnmapped(t *testing.T) {
	withPrefetcher(t, odpbackend.PrefetchConfig{InFlight: 1}, true, func(t *testing.T, r *rig) {
		busy, told, untold, again := hcatest.Map(t, kernelPage), hcatest.Map(t, 8*kernelPage), hcatest.Map(t, 8*kernelPage), hcatest.Map(t, 8*kernelPage)
		all, err := r.a.Register(hca.Whole, hcatest.Everything|hca.OnDemand)
		require.NoError(t, err)
		defer func() { require.NoError(t, r.a.Deregister(all)) }()

		opened := r.gate.shut()
		defer opened()
		require.NoError(t, r.p.Post(r.q, 1, hcatest.SGE(all, busy), true))
		require.NoError(t, r.p.Post(r.q, 2, hcatest.SGE(all, told), true))
		require.NoError(t, r.p.Post(r.q, 3, hcatest.SGE(all, untold), true))
		require.NoError(t, r.p.Post(r.q, 4, hcatest.SGE(all, again), true))
		require.Equal(t, 1, r.p.Stats().InFlight)
		rt, ru, ra := hca.RangeOf(told), hca.RangeOf(untold), hca.RangeOf(again)
		require.NoError(t, unix.Munmap(told))
		r.p.Gone(rt)
		require.NoError(t, unix.Munmap(untold))
		hcatest.Remap(t, again) // mapped again at once, and the prefetcher hears of it
		r.p.Gone(ra)
		opened()

		wcs := r.done(t, 4)
		require.NoError(t, wcs[1].Err)
		for _, id := range []uint64{2, 4} {
			require.ErrorIs(t, wcs[id].Err, hca.ErrBadAddress)
			require.Equal(t, hca.WCWRFlushErr, wcs[id].Status)
		}
		require.ErrorIs(t, wcs[3].Err, hca.ErrBadAddress)
		require.ErrorContains(t, wcs[3].Err, ru.String())
		require.Zero(t, resident(t, again), "a prefetch of memory that is gone brought in its successor")
		s := r.p.Stats()
		require.EqualValues(t, 1, s.Advises)
		require.Zero(t, s.Retries, "memory that is gone is not tried again")
	})
}

// C37: given to the device, and deregistered at once.
func TestLivePrefetchThenDeregisterAtOnce(t *testing.T) {
	withPrefetcher(t, odpbackend.PrefetchConfig{InFlight: 4}, false, func(t *testing.T, r *rig) {
		const pages, rounds = 64, 2000
		m := hcatest.Map(t, pages*kernelPage)
		b, err := odpbackend.New(r.a, odpbackend.Config{Mode: odpbackend.ModeRange})
		require.NoError(t, err)
		late := 0
		for i := range rounds {
			require.NoError(t, unix.Madvise(m, unix.MADV_DONTNEED))
			mr, err := b.Register(hca.RangeOf(m), hcatest.Everything)
			require.NoError(t, err)
			require.NoError(t, r.p.Post(r.q, uint64(i), hcatest.SGE(mr, m), true))
			for range i % 32 * 4 { // sooner or later
				runtime.Gosched()
			}
			require.NoError(t, b.Deregister(mr))
			wc := hcatest.Next(t, r.q)
			require.EqualValues(t, i, wc.ID)
			if wc.Err != nil {
				require.ErrorIs(t, wc.Err, hca.ErrInvalid, "the key is gone, and nothing else is wrong")
				late++
			}
		}
		t.Logf("%d of %d came too late for their registration", late, rounds)
		require.NotZero(t, late)
	})
}

// C39: prefetches of and around the last page of a registration do not bring
// in a page beyond it, one by one or put together.
func TestLivePrefetcherStaysInsideTheRegistration(t *testing.T) {
	withPrefetcher(t, odpbackend.PrefetchConfig{InFlight: 1}, true, func(t *testing.T, r *rig) {
		const pages = 8
		m := hcatest.Map(t, 3*pages*kernelPage)
		mid := m[pages*kernelPage : 2*pages*kernelPage]
		mr := hcatest.Register(t, r.a, mid, hcatest.Everything|hca.OnDemand)
		outside := func() int {
			return resident(t, m[:pages*kernelPage]) + resident(t, m[2*pages*kernelPage:])
		}
		opened := r.gate.shut()
		defer func() { opened() }() // also where the test ends early
		last := mid[len(mid)-1:]
		require.NoError(t, r.p.Post(r.q, 1, hcatest.SGE(mr, last), true))
		opened()
		require.NoError(t, r.done(t, 1)[1].Err)
		require.Equal(t, 1, resident(t, mid))
		require.Zero(t, outside())

		// With the queue held up, so that they are put together.
		opened = r.gate.shut()
		require.NoError(t, r.p.Post(r.q, 2, hcatest.SGE(mr, mid[:1]), true))
		for i := 1; i < pages; i++ {
			require.NoError(t, r.p.Post(r.q, uint64(2+i), hcatest.SGE(mr, mid[i*kernelPage+5:]), true))
		}
		opened()
		for id, wc := range r.done(t, pages) {
			require.NoError(t, wc.Err, "request %d", id)
		}
		require.Equal(t, pages, resident(t, mid))
		require.Zero(t, outside())
		require.EqualValues(t, 3, r.p.Stats().Advises)

		// Beyond it is refused, and not even what lies inside is brought in;
		// and it does not spoil what it was put together with.
		require.NoError(t, unix.Madvise(m, unix.MADV_DONTNEED))
		r.p.Forget(hca.Whole)
		opened = r.gate.shut()
		require.NoError(t, r.p.Post(r.q, 20, hcatest.SGE(mr, mid[:1]), true))
		require.NoError(t, r.p.Post(r.q, 21, hcatest.SGE(mr, mid[(pages-2)*kernelPage:]), true))
		beyond := hca.SGE{Addr: hca.RangeOf(last).Addr, Len: 2, LKey: mr.LKey}
		require.NoError(t, r.p.Post(r.q, 22, beyond, true))
		opened()
		wcs := r.done(t, 3)
		require.NoError(t, wcs[20].Err)
		require.NoError(t, wcs[21].Err)
		require.ErrorIs(t, wcs[22].Err, hca.ErrInvalid)
		require.Equal(t, 3, resident(t, mid))
		require.Zero(t, outside())
	})
}

// C40: an access, or a prefetch, that cannot be resolved fails, and the next
// one on the same registration is as good as if it had not been.
func TestLiveAFaultThatFailsThenOneThatWorks(t *testing.T) {
	withPrefetcher(t, odpbackend.PrefetchConfig{}, false, func(t *testing.T, r *rig) {
		const n = 4 * kernelPage
		far := hcatest.Map(t, n)
		mf := hcatest.Register(t, r.b, far, hcatest.Everything)
		near := hcatest.Map(t, n)
		mr := hcatest.Register(t, r.a, near, hcatest.Everything|hca.OnDemand)
		sge := hcatest.SGE(mr, near) // the memory may go, the registration stays
		remote := hcatest.Remote(mf, far)
		for round := range byte(50) {
			require.NoError(t, unix.MunmapPtr(ptr(sge.Addr+kernelPage), kernelPage)) // a hole
			x, _ := hcatest.Connect(t, r.a, r.b, hca.QPConfig{})
			op := []hca.Op{hca.RDMAWrite, hca.RDMARead}[round%2]
			r.p.Forget(sge.Range())
			require.NoError(t, r.p.Post(r.q, 1, sge, true))
			require.ErrorIs(t, r.done(t, 1)[1].Err, hca.ErrBadAddress)
			require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 2, Op: op, SGE: sge, Remote: remote}))
			hcatest.Want(t, x.SendCQ, 2, hca.WCLocProtErr)

			hcatest.Remap(t, near)
			require.NoError(t, r.p.Post(r.q, 3, sge, true))
			require.NoError(t, r.done(t, 1)[3].Err)
			require.Equal(t, 4, resident(t, near))
			for i := range near {
				near[i], far[i] = round, ^round
			}
			y, _ := hcatest.Connect(t, r.a, r.b, hca.QPConfig{})
			require.NoError(t, y.QP.PostSend(hca.SendWR{ID: 4, Op: op, SGE: sge, Remote: remote}))
			hcatest.Want(t, y.SendCQ, 4, hca.WCSuccess)
			require.Equal(t, near, far)
		}
	})
}

// What the kernel reports is forgotten, and so asked for again.
func TestLivePrefetcherFollowsTheKernel(t *testing.T) {
	withPrefetcher(t, odpbackend.PrefetchConfig{}, false, func(t *testing.T, r *rig) {
		mon, err := intercept.Userfault()
		if errors.Is(err, hca.ErrNotSupported) || errors.Is(err, hca.ErrAccess) {
			t.Skipf("no userfaultfd here: %v", err)
		}
		require.NoError(t, err)
		require.NoError(t, r.p.Follow(mon))
		m := hcatest.Map(t, 8*kernelPage)
		require.Equal(t, hca.MemForeign, mon.Watch(hca.RangeOf(m)).Kind)
		mr := hcatest.Register(t, r.a, m, hcatest.Everything|hca.OnDemand)
		for i := range uint64(100) {
			require.NoError(t, r.p.Post(r.q, i, hcatest.SGE(mr, m), true))
			require.NoError(t, r.done(t, 1)[i].Err)
			require.Equal(t, 8, resident(t, m))
			before := mon.Counter().Load()
			require.NoError(t, unix.Madvise(m[4*kernelPage:], unix.MADV_DONTNEED))
			// The kernel lets the call return when the event was read; the feed
			// has it when the counter has counted it.
			for g := mon.Counter().Load(); g == before || g&hca.Unsettled != 0; g = mon.Counter().Load() {
				runtime.Gosched()
			}
			require.EqualValues(t, 4, r.p.Stats().WarmPages)
		}
		s := r.p.Stats()
		require.EqualValues(t, 8+99*4, s.WarmedPages)
		require.EqualValues(t, 100*4, s.UselessPages)
		require.ErrorIs(t, mon.Close(), hca.ErrBusy, "the prefetcher listens")
		require.NoError(t, r.p.Close())
		require.NoError(t, mon.Close())
		r.p, err = odpbackend.NewPrefetcher(r.a, odpbackend.PrefetchConfig{}) // for the end of the test
		require.NoError(t, err)
	})
}

// Many goroutines prefetch, use, forget and unmap at once.
func TestLivePrefetcherUnderLoad(t *testing.T) {
	withPrefetcher(t, odpbackend.PrefetchConfig{InFlight: 2, MaxRequests: 32, MaxWarm: 1 << 20}, false, func(t *testing.T, r *rig) {
		all, err := r.a.Register(hca.Whole, hcatest.Everything|hca.OnDemand)
		require.NoError(t, err)
		defer func() { require.NoError(t, r.a.Deregister(all)) }()
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				q, err := odpbackend.NewQueue(8)
				if err != nil {
					t.Error(err)
					return
				}
				m := hcatest.Map(t, 128*kernelPage)
				out := 0
				for i := range 500 {
					from := (i*37 + g) % 100 * kernelPage
					s := hcatest.SGE(all, m[from:from+20*kernelPage])
					switch i % 5 {
					case 3:
						r.p.Used(s)
						r.p.Forget(s.Range())
					case 4:
						hcatest.Remap(t, m)
						r.p.Gone(hca.RangeOf(m))
					default:
						if r.p.Post(q, 1, s, i%2 == 0) == nil {
							out++
						}
						if out > i%4 {
							hcatest.Next(t, q)
							out--
						}
					}
				}
				for q.Close() != nil {
					hcatest.Next(t, q)
				}
			})
		}
		wg.Wait()
	})
}
