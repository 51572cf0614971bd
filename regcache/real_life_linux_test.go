package regcache_test

import (
	"errors"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
	"example.com/holdfast/regcache"
)

// pinned is what the kernel says this process has pinned, bytes.
func pinned(t testing.TB) uint64 {
	t.Helper()
	self, err := procfs.Self()
	require.NoError(t, err)
	s, err := self.NewStatus()
	require.NoError(t, err)
	return s.VmPin
}

// C11, as far as a cache that exports nothing as revocable can: a peer holds the
// remote key of a Region that is idle. The memory is unmapped, other memory
// mapped there, and the pins are gone without anybody's Get. What the peer
// writes then is refused, and the new memory is untouched.
func TestC11_PeerHoldsTheKey(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{foreign, oneChannel, owned, strict}, regcache.Config{}, func(t *testing.T, k *kit) {
		mapping := hca.Range{Addr: place(10), Len: 4 * page}
		var dropped keyCounts
		k.back.on(func(c *counting) { c.gone = func(mr *hca.MR) { dropped.add(mr) } })
		for range rounds(50) {
			l := k.newLink(t, int(mapping.Len)) // an error ends a queue pair
			k.mapAt(t, memories[0], mapping, isFree)
			var mr *hca.MR
			k.back.on(func(c *counting) { c.after = func(m *hca.MR) { mr = m } })
			require.NoError(t, l.use(k.cache, mapping))
			k.back.on(func(c *counting) { c.after = nil })
			k.unmap(t, mapping)
			k.mapAt(t, memories[0], mapping, isFree)
			dropped.wait(mr)
			fill(bytesAt(mapping), 1)
			fill(l.buf, 2)
			err := transfer(l.far, l.farCQ, hca.SendWR{Op: hca.RDMAWrite, SGE: hca.SGE{Addr: l.mr.Range.Addr, Len: mapping.Len, LKey: l.mr.LKey},
				Remote: hca.RemoteAddr{Addr: mapping.Addr, RKey: mr.RKey}})
			require.ErrorIs(t, err, hca.WCRemAccessErr)
			fill(l.buf, 1)
			require.Equal(t, l.buf, bytesAt(mapping))
			k.unmap(t, mapping)
		}
	})
}

// C11, exported as revocable and held: when the memory goes the holder is told,
// the peer is refused from then on, and what lies at the address by then is
// untouched. Without Export the same key works on, for as long as it is held.
func TestC11_ExportedAndHeld(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{foreign, oneChannel, owned, strict}, regcache.Config{}, func(t *testing.T, k *kit) {
		mapping := hca.Range{Addr: place(35), Len: 4 * page}
		for round := range rounds(100) {
			l := k.newLink(t, int(mapping.Len))
			k.mapAt(t, memories[0], mapping, isFree)
			var r *regcache.Region
			for r = k.get(t, mapping, allWays); r.UsedOnce() != hca.KeptAllRight; r = k.get(t, mapping, allWays) {
				r.Release() // the last unmap has only just been told of
			}
			x, err := r.Export()
			require.NoError(t, err)
			remote := x.Remote(bytesAt(mapping))
			write := func() error {
				return transfer(l.far, l.farCQ, hca.SendWR{Op: hca.RDMAWrite, SGE: hca.SGE{Addr: l.mr.Range.Addr, Len: mapping.Len, LKey: l.mr.LKey}, Remote: remote})
			}
			fill(l.buf, 5)
			require.NoError(t, write())
			require.Equal(t, l.buf, bytesAt(mapping))
			if round%4 == 3 {
				x.Close()
			}
			switch round % 3 {
			case 0:
				k.unmap(t, mapping)
				k.mapAt(t, memories[0], mapping, isFree)
			case 1:
				k.mapAt(t, memories[0], hca.Range{Addr: mapping.Addr + page, Len: page}, unix.MAP_FIXED)
			case 2:
				require.NoError(t, k.mem.madvise(mapping, unix.MADV_DONTNEED))
			}
			l.write(bytesAt(mapping))
			now := append([]byte(nil), bytesAt(mapping)...)
			if round%4 == 3 {
				_, err := l.see(r, mapping) // pinned, and nobody may take it back
				require.NoError(t, err)
				select {
				case <-x.Revoked():
					t.Fatal("told after Close")
				default:
				}
			} else {
				<-x.Revoked() // the child's hard limit bounds it
				require.ErrorIs(t, write(), hca.WCRemAccessErr)
				require.Equal(t, now, bytesAt(mapping))
				x.Close()
			}
			r.Release()
			l2 := k.newLink(t, int(mapping.Len))
			require.NoError(t, l2.use(k.cache, mapping))
			require.Zero(t, l2.wrong, l2.first)
			k.unmap(t, mapping)
		}
	})
}

// C13: a backend whose Deregister unmaps a cached range, and whose Register
// throws pages of another cached range away, or unmaps it. Nothing hangs, and
// that range is gone from the cache.
func TestC13_BackendTouchesMemory(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{foreign, oneChannel, owned, ownedBoth, strict, trusting}, regcache.Config{MaxRegions: 3}, func(t *testing.T, k *kit) {
		l := k.newLink(t, 4*page)
		var g [5]hca.Range
		for i := range g {
			g[i] = hca.Range{Addr: place(11) + uint64(i)*16*page, Len: 4 * page}
			k.mapAt(t, memories[0], g[i], isFree)
		}
		var busy atomic.Bool
		// once runs f in a backend call that is not made by f itself.
		once := func(f func() error) {
			if busy.CompareAndSwap(false, true) {
				if err := f(); err != nil {
					t.Error(err)
				}
			}
		}
		remap := func(g hca.Range) func() error {
			return func() error {
				if err := k.mem.munmap(g); err != nil {
					return err
				}
				_, err := k.mem.mmap(g, readWrite, anonymous|isFree, -1)
				return err
			}
		}
		for _, where := range []string{"register", "deregister"} {
			for what := range 2 {
				for range rounds(50) {
					require.NoError(t, l.use(k.cache, g[0]))
					f := remap(g[0])
					if what == 1 {
						f = func() error { return k.mem.madvise(g[0], unix.MADV_DONTNEED) }
					}
					busy.Store(false)
					if where == "register" {
						k.back.on(func(c *counting) { c.before = func(hca.Range) { once(f) } })
					} else {
						k.back.on(func(c *counting) { c.drop = func(*hca.MR) { once(f) } })
					}
					for _, other := range g[1:] { // one after another, more than the limit
						require.NoError(t, l.use(k.cache, other))
						require.NoError(t, l.use(k.cache, g[0])) // never the oldest
					}
					require.True(t, busy.Load() || k.blind, "the backend was not called")
					k.back.on(func(c *counting) { c.before, c.drop = nil, nil })
					require.NoError(t, l.use(k.cache, g[0]))
				}
			}
		}
		for _, g := range g {
			k.unmap(t, g)
		}
		k.verdictOf(t, l)
	})
}

// C16: two threads get and release one buffer a great many times: one
// registration, dropped once.
func TestC16_TwoThreadsOneBuffer(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{foreign, owned, odpWhole, odpRange}, regcache.Config{}, func(t *testing.T, k *kit) {
		n := underRace(rounds(1_000_000), 6)
		mapping := hca.Range{Addr: place(12), Len: 16 * page}
		k.mapAt(t, memories[0], mapping, isFree)
		l := k.newLink(t, 16*page)
		for k.cache.Stats().Regions == 0 {
			require.NoError(t, l.use(k.cache, mapping))
		}
		made := k.cache.Stats().Registrations
		half := func(part hca.Range) func() error {
			return func() error {
				for range n / 2 {
					r, err := k.cache.Get(part, allWays)
					if err != nil {
						return err
					}
					r.Release()
				}
				return nil
			}
		}
		together(t, half(mapping), half(hca.Range{Addr: mapping.Addr + 3*page + 1, Len: 77}))
		require.Equal(t, made, k.cache.Stats().Registrations)
		require.NoError(t, l.use(k.cache, mapping))
		k.unmap(t, mapping)
		k.verdictOf(t, l)
	})
}

// C19: 40,000 times memory that has nothing to do with what is cached is
// unmapped, and nobody calls Get. The cache's memory stays what it is, and the
// next Get is a hit. The same with memory that is cached: its pins go, and
// nobody has to call Get for it.
func TestC19_UnmapsWithoutGet(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{foreign, oneChannel, owned, strict}, regcache.Config{}, func(t *testing.T, k *kit) {
		mon := k.mon.(*intercept.Monitor)
		l := k.newLink(t, 4*page)
		own := pinned(t) // by the link; 0 where the kernel does not count what a ring pins (seen on Linux 7.2)
		mine := hca.Range{Addr: place(13), Len: 4 * page}
		k.mapAt(t, memories[0], mine, isFree)
		for k.cache.Stats().Regions == 0 {
			require.NoError(t, l.use(k.cache, mine))
		}
		n := underRace(rounds(40_000), 2)
		other := hca.Range{Addr: place(14), Len: page}
		churn := func(n int) {
			for range n {
				_, err := k.mem.mmap(other, readWrite, anonymous|isFree, -1)
				require.NoError(t, err)
				mon.Watch(other) // so that its end is reported: the worse case
				require.NoError(t, k.mem.munmap(other))
			}
		}
		churn(n / 10)
		before := heapInUse()
		churn(n)
		require.LessOrEqual(t, heapInUse(), before+256<<10)
		awaitSettled(k, mine)
		misses, events := k.cache.Stats().Misses, k.cache.Stats().Events
		require.NoError(t, l.use(k.cache, mine))
		// A probe that finds the last event still on its way is the only excuse.
		if s := k.cache.Stats(); s.EventsLost == 0 {
			require.Equal(t, misses, s.Misses, "an event elsewhere must not cost a hit: %d events, %+v", events, s)
		}
		k.verdictOf(t, l)

		// What is cached: the pins go.
		var dropped keyCounts
		k.back.on(func(c *counting) { c.gone = func(mr *hca.MR) { dropped.add(mr) } })
		k.unmap(t, mine)
		for range rounds(200) {
			var mr *hca.MR
			k.back.on(func(c *counting) { c.after = func(m *hca.MR) { mr = m } })
			k.mapAt(t, memories[0], mine, isFree)
			r := k.get(t, mine, allWays)
			r.Release()
			k.unmap(t, mine)
			dropped.wait(mr)
		}
		for k.cache.Stats().Registered > 0 { // the first of them may have been left to the reaper
			runtime.Gosched()
		}
		require.Zero(t, k.back.live())
		require.Equal(t, own, pinned(t), "more is pinned than the peer's buffer")
	})
}

// C21: children are started all the time while the cache is under load. The
// parent goes on, and the children have none of its descriptors. In full (see full)
// they are 1,000.
func TestC21_ChildrenUnderLoad(t *testing.T) {
	ls, err := exec.LookPath("ls")
	if err != nil {
		t.Skip("needs ls")
	}
	inWorlds(t, longest(2*time.Minute), nil, []world{foreign, owned}, regcache.Config{}, func(t *testing.T, k *kit) {
		children := underRace(rounds(300), 2)
		if full() {
			children = 1000
		}
		l := k.newLink(t, 4*page)
		var over atomic.Bool
		load := func() error {
			g := hca.Range{Addr: place(15), Len: 4 * page}
			for !over.Load() {
				if _, err := k.mem.mmap(g, readWrite, anonymous|isFree, -1); err != nil {
					return err
				}
				for range 3 {
					if err := l.use(k.cache, g); err != nil {
						return err
					}
				}
				if err := k.mem.munmap(g); err != nil {
					return err
				}
			}
			return nil
		}
		together(t, load, func() error {
			defer over.Store(true)
			for range children {
				out, err := exec.Command(ls, "-l", "/proc/self/fd").Output()
				if err != nil {
					return err
				}
				for _, bad := range []string{"anon_inode", "userfaultfd", "io_uring", "eventfd", "pagemap", "/maps"} {
					if strings.Contains(string(out), bad) {
						return errors.New("a child has inherited a descriptor:\n" + string(out))
					}
				}
			}
			return nil
		})
		k.verdictOf(t, l)
	})
}

// Several caches on one monitor: each learns of everything, and closing one
// does not make another deaf.
func TestReal_CachesShareAMonitor(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{foreign, owned, strict}, regcache.Config{}, func(t *testing.T, k *kit) {
		mapping, buf := shapes[2].at(place(16))
		caches := []*regcache.Cache{k.cache, k.newCache(t, regcache.Config{}), k.newCache(t, regcache.Config{MaxRegions: 1})}
		l := k.newLink(t, 4*page)
		for round := range rounds(200) {
			k.mapAt(t, memories[0], mapping, isFree)
			for _, c := range caches {
				require.NoError(t, l.use(c, buf))
				require.NoError(t, l.use(c, buf))
			}
			// One more, which comes and goes.
			c, err := regcache.New(k.back, regcache.Config{Monitor: k.mon})
			require.NoError(t, err)
			require.NoError(t, l.use(c, buf))
			if round%2 == 0 {
				require.NoError(t, c.Close())
			}
			k.unmap(t, mapping)
			k.mapAt(t, memories[0], mapping, isFree)
			for _, c := range caches {
				require.NoError(t, l.use(c, buf))
			}
			if round%2 != 0 {
				require.NoError(t, l.use(c, buf))
				require.NoError(t, c.Close())
			}
			k.unmap(t, mapping)
		}
		k.verdictOf(t, l)

		// The same from three threads, each with a cache and a place of its own
		// beside that of the others.
		fs := make([]func() error, len(caches))
		links := make([]*link, len(caches))
		for i, c := range caches {
			links[i] = k.newLink(t, page)
			g := hca.Range{Addr: place(16) + uint64(i)*page, Len: page}
			fs[i] = func() error {
				for range rounds(1000) {
					if _, err := k.mem.mmap(g, readWrite, anonymous|isFree, -1); err != nil {
						return err
					}
					for range 2 {
						if err := links[i].use(c, g); err != nil {
							return err
						}
					}
					if err := k.mem.munmap(g); err != nil {
						return err
					}
				}
				return nil
			}
		}
		together(t, fs...)
		k.verdictOf(t, links...)
	})
}

// C18 on the device: many threads get the same cold range at once.
func TestC18_ManyGetColdMemory(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{foreign, owned, alone, odpRange}, regcache.Config{}, func(t *testing.T, k *kit) {
		const threads = 8
		links := make([]*link, threads)
		for i := range links {
			links[i] = k.newLink(t, page)
		}
		mapping := hca.Range{Addr: place(17), Len: threads * page}
		for round := range rounds(200) {
			if round%4 != 3 { // every fourth time there is nothing: all of them get the error
				k.mapAt(t, memories[0], mapping, isFree)
			}
			var start sync.WaitGroup
			start.Add(threads)
			fs := make([]func() error, threads)
			for i := range fs {
				mine := hca.Range{Addr: mapping.Addr + uint64(i)*page, Len: page}
				fs[i] = func() error {
					start.Done()
					start.Wait()
					r, err := k.cache.Get(mapping, allWays)
					if round%4 == 3 && k.backend == nil {
						if !errors.Is(err, hca.ErrBadAddress) {
							return errors.New("nothing is mapped, and Get works")
						}
						return nil
					}
					if err != nil {
						return err
					}
					defer r.Release()
					if round%4 == 3 {
						return nil
					}
					links[i].write(bytesAt(mine))
					return links[i].check(r, bytesAt(mine))
				}
			}
			together(t, fs...)
			if round%4 != 3 {
				k.unmap(t, mapping)
			}
		}
		k.verdictOf(t, links...)
	})
}
