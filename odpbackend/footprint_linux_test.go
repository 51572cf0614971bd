package odpbackend_test

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
	"example.com/holdfast/hcasim"
	"example.com/holdfast/internal/childtest"
	"example.com/holdfast/odpbackend"
	"example.com/holdfast/regcache"
)

// C34: on-demand registrations need not be dropped to be right, so nothing but
// the cache's sweep keeps them from piling up. Memory is mapped, registered,
// unmapped and released again and again, at one address and at ever new ones,
// under each kind of registration, and what is held must not grow.

const windowSize = 2 << 20

// house is a cache over an on-demand backend on a live device, and a peer that
// checks what the adapter sees.
type house struct {
	dev   *hcasim.Device
	cache *regcache.Cache
	x     *hcatest.End
	near  []byte // pinned, at the peer
	far   *hca.MR
	base  uint64 // address space that nobody else uses
}

const (
	free  = 16 << 40 // nothing is mapped from here on
	space = 256 << 30
)

func newHouse(t *testing.T, mode odpbackend.Mode, cfg regcache.Config) *house {
	t.Helper()
	fab, err := hcasim.NewFabric(hcasim.FabricConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fab.Close()) })
	h := &house{}
	h.dev, err = hcasim.Open(hcasim.Live{Fabric: fab})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.dev.Close(), "no registration is left") })
	peer, err := hcasim.Open(hcasim.Live{Fabric: fab})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, peer.Close()) })
	h.x, _ = hcatest.Connect(t, h.dev, peer, hca.QPConfig{})
	h.near = hcatest.Map(t, kernelPage)
	h.far = hcatest.Register(t, peer, h.near, hcatest.Everything)

	b, err := odpbackend.New(h.dev, odpbackend.Config{Mode: mode, Window: windowSize})
	require.NoError(t, err)
	require.Equal(t, mode, b.Mode())
	h.cache, err = regcache.New(b, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.cache.Close()) })

	// Address space far from where the kernel puts what does not say where it
	// wants to be; what lies there by chance is passed over.
	at := uint64(free)
	p, err := unix.MmapPtr(-1, 0, ptr(at), space, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED_NOREPLACE)
	for ; errors.Is(err, unix.EEXIST) && at < free+16*space; at += space {
		p, err = unix.MmapPtr(-1, 0, ptr(at+space), space, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED_NOREPLACE)
	}
	require.NoError(t, err)
	require.NoError(t, unix.MunmapPtr(p, space))
	h.base = at + windowSize
	return h
}

// round maps a page at base plus at, has it registered, written and read by
// the adapter if check is set, unmaps it while it is held, and gives it back.
func (h *house) round(t *testing.T, at uint64, mark byte, check bool) {
	g := hca.Range{Addr: h.base + at, Len: kernelPage}
	p, err := unix.MmapPtr(-1, 0, ptr(g.Addr), kernelPage, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
	require.NoError(t, err)
	r, err := h.cache.Get(g, hca.LocalWrite)
	require.NoError(t, err)
	if check {
		*(*byte)(p) = mark
		require.NoError(t, h.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMAWrite, SGE: r.SGERange(hca.Range{Addr: g.Addr, Len: 64}),
			Remote: hca.RemoteAddr{Addr: h.far.Range.Addr, RKey: h.far.RKey}}))
		hcatest.Want(t, h.x.SendCQ, 1, hca.WCSuccess)
		require.Equal(t, mark, h.near[0], "the adapter sees what lies there now")
	}
	require.NoError(t, unix.MunmapPtr(p, kernelPage))
	r.Release()
}

// keys is how many registrations the device has.
func (h *house) keys() int {
	c := h.dev.Counters()
	return int(c.Registrations - c.Deregistrations)
}

// held is what a process has that may grow.
type held struct {
	heap                      uint64
	goroutines, files, mapped int
}

func (h *house) holds(t *testing.T) held {
	t.Helper()
	self, err := procfs.Self()
	require.NoError(t, err)
	maps, err := self.ProcMaps()
	require.NoError(t, err)
	for _, m := range maps {
		g := hca.Range{Addr: uint64(m.StartAddr), Len: uint64(m.EndAddr - m.StartAddr)}
		require.False(t, g.Overlaps(hca.Range{Addr: h.base, Len: space}), "%v is mapped", g)
	}
	files, err := self.FileDescriptorsLen()
	require.NoError(t, err)
	runtime.GC()
	runtime.GC()
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	return held{heap: ms.HeapAlloc, goroutines: runtime.NumGoroutine(), files: files, mapped: len(maps)}
}

func notMore(t *testing.T, before, after held) {
	t.Helper()
	t.Logf("before %+v, after %+v", before, after)
	require.LessOrEqual(t, after.heap, before.heap+1<<20, "heap")
	require.LessOrEqual(t, after.goroutines, before.goroutines)
	require.LessOrEqual(t, after.files, before.files)
	require.LessOrEqual(t, after.mapped, before.mapped+256, "mappings; the runtime and the race detector map some")
}

func TestFootprintOfMemoryThatComesAndGoes(t *testing.T) {
	const every = 1000 // rounds between two sweeps
	rounds := 100_000
	if raceDetector { // which makes everything several times slower, and sees as much in fewer
		rounds /= 10
	}
	for _, mode := range []odpbackend.Mode{odpbackend.ModeWhole, odpbackend.ModeWindows, odpbackend.ModeRange} {
		for _, c := range []struct {
			name string
			step uint64
		}{{"at one address", 0}, {"at ever new ones", windowSize}} {
			t.Run(mode.String()+" "+c.name, func(t *testing.T) {
				childtest.Run(t, 60*time.Second, []string{"GORACE=atexit_sleep_ms=0"}, func(t *testing.T) {
					h := newHouse(t, mode, regcache.Config{SweepEvery: -1})
					run := func(from, to int) (most int) {
						for i := from; i < to; i++ {
							h.round(t, uint64(i)*c.step, byte(i), i%64 == 0)
							most = max(most, h.keys())
							if i%every == every-1 {
								h.cache.Sweep()
							}
						}
						return most
					}
					run(0, 2*every) // maps and tables reach the size they need
					before := h.holds(t)
					most := run(2*every, rounds)
					after := h.holds(t)
					s := h.cache.Stats()
					t.Logf("%d registrations made, at most %d at a time; %d hits; %d swept", s.Registrations, most, s.Hits, s.Swept)
					want := 1 // registrations at a time; the peer's is its own
					switch {
					case mode != odpbackend.ModeWhole && c.step != 0:
						want = every
						require.EqualValues(t, rounds, s.Registrations, "each round had address space of its own")
					case mode == odpbackend.ModeWhole:
						require.EqualValues(t, 1, s.Registrations)
					default:
						require.LessOrEqual(t, s.Registrations, uint64(rounds/every+1), "one until the sweep finds it unused")
					}
					require.LessOrEqual(t, most, want)
					if mode != odpbackend.ModeWhole {
						require.Zero(t, h.keys(), "nothing is mapped there any more")
						require.Zero(t, s.Registered)
					}
					notMore(t, before, after)
				})
			})
		}
	}
}

// A window is kept for as long as anything is mapped in it or anybody has it,
// and not longer.
func TestAWindowStaysForAsLongAsItIsOfUse(t *testing.T) {
	childtest.Run(t, liveLimit, nil, func(t *testing.T) {
		h := newHouse(t, odpbackend.ModeWindows, regcache.Config{SweepEvery: -1})
		mapAt := func(at uint64) hca.Range {
			_, err := unix.MmapPtr(-1, 0, ptr(h.base+at), kernelPage, unix.PROT_READ|unix.PROT_WRITE,
				unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
			require.NoError(t, err)
			return hca.Range{Addr: h.base + at, Len: kernelPage}
		}
		unmap := func(g hca.Range) { require.NoError(t, unix.MunmapPtr(ptr(g.Addr), uintptr(g.Len))) }
		get := func(g hca.Range) *regcache.Region {
			r, err := h.cache.Get(g, hca.LocalWrite)
			require.NoError(t, err)
			return r
		}
		first, last := mapAt(0), mapAt(windowSize-kernelPage)
		r := get(first)
		require.Equal(t, hca.Range{Addr: h.base, Len: windowSize}, r.Range())
		r.Release()
		require.Zero(t, h.cache.Sweep())
		unmap(first)
		require.Zero(t, h.cache.Sweep(), "its last page is mapped")
		require.Equal(t, 1, h.keys())
		r = get(last)
		unmap(last)
		require.Zero(t, h.cache.Sweep(), "it is in use")
		require.Equal(t, 1, h.keys())
		r.Release()
		require.Equal(t, 1, h.cache.Sweep())
		require.Zero(t, h.keys())

		// A neighbour's memory is no reason to keep it.
		beyond := mapAt(windowSize)
		first = mapAt(0)
		get(first).Release()
		unmap(first)
		require.Equal(t, 1, h.cache.Sweep())
		unmap(beyond)

		// And it comes back with the next user.
		first = mapAt(0)
		get(first).Release()
		require.Equal(t, 1, h.keys())
		unmap(first)
	})
}

// The cache finds empty windows by itself, without any call.
func TestEmptyWindowsGoByThemselves(t *testing.T) {
	childtest.Run(t, liveLimit, nil, func(t *testing.T) {
		h := newHouse(t, odpbackend.ModeWindows, regcache.Config{SweepEvery: time.Millisecond, SweepShare: 1})
		for i := range 5000 {
			h.round(t, uint64(i)*windowSize, byte(i), false)
		}
		for h.keys() > 0 { // the child's limit ends this if it never comes
			runtime.Gosched()
		}
		s := h.cache.Stats()
		require.EqualValues(t, 5000, s.Swept)
		require.Positive(t, s.Sweeps)
	})
}
