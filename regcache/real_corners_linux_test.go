package regcache_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/regcache"
)

// Bystanders get and release ranges that overlap with what another thread maps,
// uses, moves and unmaps all the time; what they get while the memory changes
// is theirs to judge. What they leave in the cache, from registrations that they
// began when the memory was another, must not reach the thread that owns it.
func TestReal_Bystanders(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{foreign, oneChannel, owned, ownedBoth, strict, trusting}, regcache.Config{}, func(t *testing.T, k *kit) {
		const pages = 12
		whole := hca.Range{Addr: place(28), Len: pages * page}
		aside := hca.Range{Addr: place(29), Len: pages * page}
		l := k.newLink(t, pages*page)
		var over atomic.Bool
		var got, refused atomic.Uint64
		part := func(r *rand.Rand) hca.Range {
			first := r.Uint64N(pages)
			return hca.Range{Addr: whole.Addr + first*page, Len: (1 + r.Uint64N(pages-first)) * page}
		}
		bystander := func(seed uint64) func() error {
			return func() error {
				rnd := rand.New(rand.NewPCG(seed, 7))
				for !over.Load() {
					r, err := k.cache.Get(part(rnd), allWays)
					if errors.Is(err, hca.ErrBadAddress) {
						refused.Add(1)
						continue
					}
					if err != nil {
						return err
					}
					got.Add(1)
					r.Release()
				}
				return nil
			}
		}
		together(t, bystander(1), bystander(2), func() error {
			defer over.Store(true)
			rnd := rand.New(rand.NewPCG(3, 7))
			if _, err := k.mem.mmap(whole, readWrite, anonymous|isFree, -1); err != nil {
				return err
			}
			// A short run can be over before a bystander had his turn.
			for round := 0; round < underRace(rounds(1000), 2) || got.Load() == 0; round++ {
				g := part(rnd)
				var err error
				switch round % 4 {
				case 0:
					if err = k.mem.munmap(g); err == nil {
						_, err = k.mem.mmap(g, readWrite, anonymous|isFree, -1)
					}
				case 1:
					_, err = k.mem.mmap(g, readWrite, anonymous|unix.MAP_FIXED, -1)
				case 2: // other memory is moved over it
					other := hca.Range{Addr: aside.Addr, Len: g.Len}
					if _, err = k.mem.mmap(other, readWrite, anonymous|isFree, -1); err == nil {
						_, err = k.mem.mremap(other, g.Len, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, g.Addr)
					}
				case 3:
					err = k.mem.madvise(g, unix.MADV_DONTNEED)
				}
				if err != nil {
					return err
				}
				for _, use := range []hca.Range{g, part(rnd), {Addr: g.Addr + 9, Len: g.Len - 100}} {
					if err := l.use(k.cache, use); err != nil {
						return err
					}
				}
				if round%16 == 15 { // free of all doubt again
					if err = k.mem.munmap(whole); err == nil {
						_, err = k.mem.mmap(whole, readWrite, anonymous|isFree, -1)
					}
					if err != nil {
						return err
					}
				}
			}
			return nil
		})
		t.Logf("the bystanders got %d Regions and were refused %d times", got.Load(), refused.Load())
		require.Positive(t, got.Load())
		k.unmap(t, whole)
		k.verdictOf(t, l)
	})
}

// Huge pages: a discard of one small page splits one, and a buffer begins and
// ends in the middle of one.
func TestReal_HugePages(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{foreign, owned, odpWhole, trusting}, regcache.Config{}, func(t *testing.T, k *kit) {
		const huge = 2 << 20
		l := k.newLink(t, 2*huge)
		g := hca.Range{Addr: place(30), Len: 4 * huge}
		buf := hca.Range{Addr: g.Addr + huge/2 + 100, Len: 2*huge - 1000}
		found := false
		for round := range rounds(20) {
			k.mapAt(t, memories[5], g, isFree)
			require.NoError(t, l.use(k.cache, buf))
			found = found || hasHuge(t, g)
			require.NoError(t, l.use(k.cache, buf))
			hole := hca.Range{Addr: g.Addr + huge + uint64(round)*page, Len: page}
			require.NoError(t, k.mem.madvise(hole, unix.MADV_DONTNEED))
			require.NoError(t, l.use(k.cache, buf))
			require.NoError(t, l.use(k.cache, hole))
			k.mapAt(t, memories[5], hca.Range{Addr: g.Addr + huge, Len: huge}, unix.MAP_FIXED)
			require.NoError(t, l.use(k.cache, buf))
			require.NoError(t, l.use(k.cache, buf))
			k.unmap(t, g)
		}
		if !found {
			t.Log("the kernel gave no huge page here")
		}
		k.verdictOf(t, l)
	})
}

// hasHuge reports whether some of g is on huge pages.
func hasHuge(t *testing.T, g hca.Range) bool {
	b, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	at := bytes.Index(b, []byte(fmt.Sprintf("%x-", g.Addr)))
	if at < 0 {
		return false
	}
	b = b[at:]
	at = bytes.Index(b, []byte("AnonHugePages:"))
	var kib int
	_, err = fmt.Sscanf(string(b[at:]), "AnonHugePages: %d kB", &kib)
	require.NoError(t, err)
	return kib > 0
}

// A mapping that somebody else's userfaultfd watches cannot be watched by ours:
// its registrations are used once and dropped, with the reason, and right.
func TestReal_SomebodyElseWatches(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{foreign, strict}, regcache.Config{}, func(t *testing.T, k *kit) {
		fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK|1, 0, 0)
		require.Zero(t, errno)
		defer unix.Close(int(fd))
		api := [3]uint64{0xaa, 1<<15 | 1<<13, 0} // asynchronous write protection, and no events
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, 0xc018aa3f, uintptr(unsafe.Pointer(&api)))
		require.Zero(t, errno)
		l := k.newLink(t, 4*page)
		g := hca.Range{Addr: place(31), Len: 4 * page}
		for range rounds(100) {
			k.mapAt(t, memories[1], g, isFree)
			reg := [4]uint64{g.Addr, g.Len / 2, 2, 0}
			_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, 0xc020aa00, uintptr(unsafe.Pointer(&reg)))
			require.Zero(t, errno)
			r := k.get(t, g, allWays)
			if k.name == inKernel.name {
				require.Equal(t, hca.KeptAllRight, r.UsedOnce(), "it watches no mapping")
			} else {
				require.NotEqual(t, hca.KeptAllRight, r.UsedOnce())
			}
			r.Release()
			require.NoError(t, l.use(k.cache, g))
			k.unmap(t, g)
			k.mapAt(t, memories[1], g, isFree)
			require.NoError(t, l.use(k.cache, g))
			k.unmap(t, g)
		}
		require.Equal(t, k.name != inKernel.name, k.cache.Stats().UsedOnce[hca.UnkeptRefused] > 0)
		k.verdictOf(t, l)
	})
}

// Ranges that are no ordinary memory: an error or a good Region, never a crash,
// and the cache goes on.
func TestReal_StrangePlaces(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{foreign, owned, alone, odpWhole, odpRange}, regcache.Config{}, func(t *testing.T, k *kit) {
		self, err := procfs.Self()
		require.NoError(t, err)
		maps, err := self.ProcMaps()
		require.NoError(t, err)
		file := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(file, make([]byte, 4*page), 0o600))
		f, err := os.OpenFile(file, os.O_RDWR, 0)
		require.NoError(t, err)
		shared, err := unix.Mmap(int(f.Fd()), 0, 4*page, readWrite, unix.MAP_SHARED)
		require.NoError(t, err)
		private, err := unix.Mmap(int(f.Fd()), 0, 4*page, readWrite, unix.MAP_PRIVATE)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		none, err := unix.Mmap(-1, 0, 4*page, unix.PROT_NONE, anonymous)
		require.NoError(t, err)
		places := []hca.Range{
			hca.RangeOf(shared), hca.RangeOf(private), hca.RangeOf(none),
			{Addr: 0, Len: 1}, {Addr: 1, Len: 2 * page}, {Addr: 1 << 47, Len: page}, {Addr: ^uint64(0) - page, Len: page},
			{Addr: 0xffff800000000000, Len: page}, {Addr: 1<<47 - 2*page, Len: 3 * page},
			{Addr: place(32), Len: 1 << 40}, {Addr: place(32), Len: 1<<30 + 1},
		}
		for _, m := range maps {
			n := min(uint64(m.EndAddr-m.StartAddr), 2*page)
			places = append(places, hca.Range{Addr: uint64(m.StartAddr), Len: n}, hca.Range{Addr: uint64(m.EndAddr) - n, Len: n})
		}
		l := k.newLink(t, 4*page)
		good := hca.Range{Addr: place(33), Len: 4 * page}
		k.mapAt(t, memories[0], good, isFree)
		works := 0
		for _, g := range places {
			for _, a := range []hca.Access{hca.LocalRead, allWays} {
				r, err := k.cache.Get(g, a)
				if err == nil {
					works++
					require.True(t, r.Range().Contains(g))
					r.Release()
				} else {
					require.True(t, errors.Is(err, hca.ErrBadAddress) || errors.Is(err, hca.ErrTooLong) || errors.Is(err, hca.ErrInvalid), "%v: %v", g, err)
				}
			}
			require.NoError(t, l.use(k.cache, good))
		}
		t.Logf("%d of %d worked", works, 2*len(places))
		require.NoError(t, l.use(k.cache, hca.RangeOf(private)))
		require.NoError(t, unix.Munmap(shared))
		require.NoError(t, unix.Munmap(private))
		require.NoError(t, unix.Munmap(none))
		k.unmap(t, good)
		k.verdictOf(t, l)
	})
}
