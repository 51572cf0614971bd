package regcache_test

import (
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/hcasim"
	"example.com/holdfast/intercept"
	"example.com/holdfast/internal/childtest"
	"example.com/holdfast/pinbackend"
	"example.com/holdfast/regcache"
)

// C28: memory that can only be read. The live device pins for writing whatever
// it is asked for, so it refuses with an error that says so; on demand it works.
// To write it is refused everywhere, and works once the memory can be written.
// A refusal leaves nothing behind.
func TestC28_ReadOnlyMemory(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{foreign, owned, alone, odpWhole, odpWindows, odpRange}, regcache.Config{}, func(t *testing.T, k *kit) {
		l := k.newLink(t, 4*page)
		g := hca.Range{Addr: place(18), Len: 4 * page}
		for _, m := range memories[:4] {
			for range rounds(20) {
				k.mapAt(t, m, g, isFree)
				l.write(bytesAt(g))
				require.NoError(t, unix.Mprotect(bytesAt(g), unix.PROT_READ))
				made := k.cache.Stats().Registrations
				r, err := k.cache.Get(g, hca.LocalRead)
				if k.backend == nil {
					require.True(t, k.a.Attr().PinsForWriting)
					require.ErrorIs(t, err, hca.ErrBadAddress)
					require.ErrorContains(t, err, "read-only")
					require.ErrorContains(t, err, "on-demand")
					_, err = k.cache.Get(g, allWays)
					require.ErrorIs(t, err, hca.ErrBadAddress)
					require.Equal(t, made, k.cache.Stats().Registrations)
				} else {
					require.NoError(t, err)
					got, err := l.see(r, g)
					require.NoError(t, err)
					require.Equal(t, bytesAt(g), got)
					r.Release()
					// The address space can be registered for writing, mapped or
					// not; writing it then fails as writing it by CPU would.
					r, err = k.cache.Get(g, allWays)
					require.NoError(t, err)
					l2 := k.newLink(t, 4*page)
					was := append([]byte(nil), bytesAt(g)...)
					err = l2.put(r, g)
					require.True(t, errors.Is(err, hca.WCRemAccessErr) || errors.Is(err, hca.WCLocProtErr), "%v", err)
					require.Equal(t, was, bytesAt(g))
					r.Release()
				}
				require.NoError(t, unix.Mprotect(bytesAt(g), readWrite))
				require.NoError(t, l.use(k.cache, g))
				require.NoError(t, l.use(k.cache, g))
				// Half of it only.
				half := hca.Range{Addr: g.Addr, Len: 2 * page}
				k.unmap(t, g)
				k.mapAt(t, m, g, isFree)
				require.NoError(t, unix.Mprotect(bytesAt(half), unix.PROT_READ))
				rest := hca.Range{Addr: half.End(), Len: half.Len}
				require.NoError(t, l.use(k.cache, rest))
				if k.backend == nil {
					_, err = k.cache.Get(g, allWays)
					require.ErrorIs(t, err, hca.ErrBadAddress)
				}
				require.NoError(t, l.use(k.cache, rest))
				k.unmap(t, g)
			}
		}
		k.verdictOf(t, l)
	})
}

// C32: a limit of locked memory of 1 MiB, and ten of buffers used in turn: no
// error as long as no more than the limit is in use at a time, by eviction. One
// more is refused with an error that names the limit and what is in use, and
// works again when there is room.
func TestC32_LockedMemoryLimit(t *testing.T) {
	uid := 56000 // each its own: the charge is the user's
	for _, size := range []uint64{64 << 10, 4 << 10, 256 << 10} {
		for _, w := range []world{foreign, owned} {
			for _, most := range []uint64{0, math.MaxUint64} { // the default, and nothing but the kernel
				uid++
				t.Run(fmt.Sprintf("%d_KiB/%s/MaxBytes_%d", size>>10, w.name, most), func(t *testing.T) {
					childtest.Run(t, time.Minute, childEnv(), func(t *testing.T) {
						const limit = 1 << 20
						childtest.DropPrivileges(t, uid, limit)
						lockedLimit(t, newKit(t, w, regcache.Config{MaxBytes: most}), size, limit)
					})
				})
			}
		}
	}
}

func lockedLimit(t *testing.T, k *kit, size, limit uint64) {
	// The ring itself and the peer's buffer are charged to the same user, so
	// that the number of Regions that fit is found out and not known.
	l := k.newLink(t, int(size))
	all := hca.Range{Addr: place(19), Len: 10 << 20}
	k.mapAt(t, memories[0], all, isFree)
	_ = raw{}.madvise(all, unix.MADV_NOHUGEPAGE) // a small buffer on a huge page is charged as a huge page
	buffer := func(i uint64) hca.Range { return hca.Range{Addr: all.Addr + i*size, Len: size} }
	n := all.Len / size
	for range 2 {
		for i := range n {
			require.NoError(t, l.use(k.cache, buffer(i)), "buffer %d: nothing else is in use", i)
		}
	}
	require.Positive(t, k.cache.Stats().Evictions, "the limit was never reached: the test proves nothing")

	var held []*regcache.Region
	var err error
	for i := uint64(0); ; i++ {
		var r *regcache.Region
		if r, err = k.cache.Get(buffer(i), allWays); err != nil {
			break
		}
		held = append(held, r)
		require.LessOrEqual(t, i, limit/size, "more than the limit is in use")
	}
	const ring = 64 << 10 // what the device itself is charged for is less
	require.Greater(t, uint64(len(held)+2)*size, limit-ring, "it was refused although it would have fitted, beside the peer's buffer")
	require.ErrorIs(t, err, hca.ErrNoMemory)
	t.Log(err)
	require.ErrorContains(t, err, hca.Bytes(limit).String(), "the limit")
	require.ErrorContains(t, err, hca.Bytes(uint64(len(held))*size).String(), "what is in use")
	for i, r := range held {
		g := buffer(uint64(i))
		l.write(bytesAt(g))
		require.NoError(t, l.check(r, bytesAt(g)))
	}
	held[0].Release()
	require.NoError(t, l.use(k.cache, buffer(n-1)))
	for _, r := range held[1:] {
		r.Release()
	}
	require.NoError(t, l.use(k.cache, buffer(n-2)))
	k.unmap(t, all)
	k.verdictOf(t, l)
}

// C33: a great many distinct buffers under a limit: never more registered than
// the limit, nor more pinned, and the memory of the process is flat. In full (see
// full) they are 10^6.
func TestC33_ManyBuffers(t *testing.T) {
	const most = 100
	inWorlds(t, longest(2*time.Minute), nil, []world{foreign, owned, odpRange, alone}, regcache.Config{MaxRegions: most, MaxBytes: most * page}, func(t *testing.T, k *kit) {
		l := k.newLink(t, page)
		n := underRace(rounds(30_000), 2)
		if full() {
			n = 1_000_000
		}
		const chunk = 64
		own := pinned(t) // by the link
		var heap uint64
		var maps int
		for i := 0; i < n; i += chunk {
			// Fresh address space each time: no buffer is met twice.
			m := hca.Range{Addr: place(20) + uint64(i)*page, Len: chunk * page}
			k.mapAt(t, memories[0], m, isFree)
			for j := range uint64(chunk) {
				require.NoError(t, l.use(k.cache, hca.Range{Addr: m.Addr + j*page, Len: page}))
				if (uint64(i)+j)%997 == 0 {
					require.LessOrEqual(t, k.back.live(), most)
					require.LessOrEqual(t, pinned(t), own+most*page)
				}
			}
			k.unmap(t, m)
			if i == n/5/chunk*chunk {
				heap, maps = heapInUse(), mappings(t)
			}
		}
		require.LessOrEqual(t, heapInUse(), heap+256<<10)
		require.LessOrEqual(t, mappings(t), maps+200)
		s := k.cache.Stats()
		require.GreaterOrEqual(t, s.Registrations, uint64(n))
		require.Zero(t, s.Failures)
		t.Logf("%d buffers, %d registrations, %d pinned pages at the end", n, s.Registrations, (pinned(t)-own)/page)
		k.verdictOf(t, l)
	})
}

// All slots of the device in use once, and more buffers than that in turn: the
// cache gives back what is idle, and the caller sees no error.
func TestReal_OutOfKeys(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{owned}, regcache.Config{MaxRegions: 1 << 20}, func(t *testing.T, k *kit) {
		l := k.newLink(t, page)
		n := uint64(k.a.Attr().MaxMR) + 500
		all := hca.Range{Addr: place(21), Len: 2 * n * page} // a page between two: they are never neighbours
		k.mapAt(t, memories[2], all, isFree)
		for i := range n {
			require.NoError(t, l.use(k.cache, hca.Range{Addr: all.Addr + 2*i*page, Len: 8}))
		}
		s := k.cache.Stats()
		require.Positive(t, s.Retries, "the keys never ran out: the test proves nothing")
		require.Zero(t, s.Failures)
		k.unmap(t, all)
		k.verdictOf(t, l)
	})
}

// The device is out of keys, and before the cache has got round to looking for
// something to give back somebody else has given all of it back: the Get is tried
// again and not failed with nothing in use.
func TestReal_GivenBackMeanwhile(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{owned}, regcache.Config{}, func(t *testing.T, k *kit) {
		l := k.newLink(t, page)
		all := hca.Range{Addr: place(34), Len: 8 * page}
		k.mapAt(t, memories[0], all, isFree)
		for i, cause := range []error{hca.ErrNoKeys, hca.ErrNoMemory} {
			require.NoError(t, l.use(k.cache, hca.Range{Addr: all.Addr, Len: page}))
			refused := false
			k.back.on(func(c *counting) {
				c.refuse = func() error {
					if refused {
						return nil
					}
					refused = true
					flushed := make(chan int)
					go func() { flushed <- k.cache.Flush() }()
					require.Positive(t, <-flushed)
					return &hca.OpError{Op: "test", Err: cause}
				}
			})
			require.NoError(t, l.use(k.cache, hca.Range{Addr: all.Addr + uint64(4+2*i)*page, Len: page}))
			require.True(t, refused)
			k.back.on(func(c *counting) { c.refuse = nil })
		}
		k.unmap(t, all)
		k.verdictOf(t, l)
	})
}

// The kernel's limit of mappings: watching must not use mappings up, so that a
// program with very many of them can go on mapping.
func TestReal_WatchingCostsNoMappings(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{foreign}, regcache.Config{}, func(t *testing.T, k *kit) {
		all := hca.Range{Addr: place(22), Len: 20_000 * page}
		k.mapAt(t, memories[1], all, isFree)
		before := mappings(t)
		kept := 0
		for i := range uint64(10_000) {
			r := k.get(t, hca.Range{Addr: all.Addr + 2*i*page, Len: page}, allWays)
			if r.UsedOnce() == hca.KeptAllRight {
				kept++
			}
			r.Release()
		}
		require.Greater(t, kept, 9_000)
		require.LessOrEqual(t, mappings(t), before+50)
		k.unmap(t, all)
	})
}

// What cannot work says so: a build without cgo has no userfaultfd, and its
// error says what is missing.
func TestReal_ConstructorSaysWhatIsMissing(t *testing.T) {
	m, err := intercept.Userfault()
	if err == nil {
		require.NoError(t, m.Close())
		return
	}
	require.True(t, errors.Is(err, hca.ErrNotSupported) || errors.Is(err, hca.ErrAccess), "%v", err)
	require.ErrorContains(t, err, "use explicit calls")
	info, ok := debug.ReadBuildInfo()
	require.True(t, ok)
	if slices.Contains(info.Settings, debug.BuildSetting{Key: "CGO_ENABLED", Value: "0"}) {
		require.ErrorIs(t, err, hca.ErrNotSupported)
		require.ErrorContains(t, err, "built without cgo")
		require.ErrorContains(t, err, "CGO_ENABLED=1")
	}
	e, err := intercept.Explicit()
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	dev, err := hcasim.Open(hcasim.Live{})
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	c, err := regcache.New(pinbackend.New(dev), regcache.Config{Monitor: e})
	require.NoError(t, err)
	require.NoError(t, c.Close())
}
