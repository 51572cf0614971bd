package regcache_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/regcache"
)

// C5: mremap in all its forms. What was cached at the old place and what was
// cached at the new place are both gone; what is there now is right at once.
func TestC5_Moved(t *testing.T) {
	inWorlds(t, time.Minute, nil, append(worlds, trusting), regcache.Config{}, func(t *testing.T, k *kit) {
		const pages = 8
		l := k.newLink(t, 3*pages*page)
		a := hca.Range{Addr: place(8), Len: pages * page}
		b := hca.Range{Addr: place(9), Len: pages * page}
		must := func(g hca.Range) {
			t.Helper()
			require.NoError(t, l.use(k.cache, g))
			require.NoError(t, l.use(k.cache, g))
		}
		// still checks bytes that mremap is to leave alone.
		still := func(g hca.Range) {
			t.Helper()
			r := k.get(t, g, allWays)
			require.NoError(t, l.check(r, bytesAt(g)))
			r.Release()
		}
		gone := func(g hca.Range) {
			t.Helper()
			if k.backend != nil || k.blind {
				return // on-demand registrations are of addresses, mapped or not
			}
			_, err := k.cache.Get(g, allWays)
			require.ErrorIs(t, err, hca.ErrBadAddress)
		}
		for _, m := range []memory{memories[0], memories[1], memories[2], memories[4]} {
			for range rounds(30) {
				// Moved onto memory that is cached as well.
				k.mapAt(t, m, a, isFree)
				k.mapAt(t, memories[0], b, isFree)
				must(a)
				must(b)
				_, err := k.mem.mremap(a, a.Len, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, b.Addr)
				require.NoError(t, err)
				still(b)
				must(b)
				gone(a)
				k.mapAt(t, memories[0], a, isFree)
				must(a)
				must(b)
				k.unmap(t, a)

				// Shrunk: the tail is gone, and so is what covered both.
				_, err = k.mem.mremap(b, b.Len/2, 0, 0)
				require.NoError(t, err)
				head := hca.Range{Addr: b.Addr, Len: b.Len / 2}
				tail := hca.Range{Addr: head.End(), Len: b.Len / 2}
				still(head)
				must(head)
				gone(tail)
				gone(b)
				k.mapAt(t, memories[0], tail, isFree)
				must(tail)
				must(b)
				k.unmap(t, tail)

				// Grown where it is, if nothing is in the way; what was cached
				// is still good. Memory of a file has no bytes behind its end.
				if !m.file && m.flags&unix.MAP_SHARED == 0 {
					must(head)
					_, err = k.mem.mremap(head, b.Len, 0, 0)
					require.NoError(t, err)
					still(head)
					must(tail)
					must(b)
				}
				require.NoError(t, k.mem.munmap(b))
				gone(b)

				// Moved while the Region is held, and away from half of itself.
				k.mapAt(t, m, a, isFree)
				l.write(bytesAt(a))
				held := k.get(t, a, allWays)
				half := hca.Range{Addr: a.Addr + a.Len/2, Len: a.Len / 2}
				_, err = k.mem.mremap(half, half.Len, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, b.Addr)
				require.NoError(t, err)
				still(hca.Range{Addr: a.Addr, Len: a.Len / 2})
				still(hca.Range{Addr: b.Addr, Len: half.Len})
				gone(a)
				gone(half)
				k.mapAt(t, memories[0], half, isFree)
				must(a)
				held.Release()
				must(a)
				k.unmap(t, a)
				k.unmap(t, hca.Range{Addr: b.Addr, Len: half.Len})

				// Moved, and the old mapping stays, empty.
				if m.flags == anonymous {
					k.mapAt(t, m, a, isFree)
					must(a)
					_, err = k.mem.mremap(a, a.Len, unix.MREMAP_MAYMOVE|unix.MREMAP_DONTUNMAP|unix.MREMAP_FIXED, b.Addr)
					require.NoError(t, err)
					must(a)
					still(b)
					must(b)
					k.unmap(t, a)
					k.unmap(t, b)
				}
			}
		}
		k.verdictOf(t, l)
	})
}

// C6: the program break. A cached range of it stays a hit when the break goes
// up; what comes back after it went down is new. Nobody but the kernel is told.
func TestC6_Break(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{foreign, oneChannel, unseen, alone, odpWhole, trusting}, regcache.Config{}, func(t *testing.T, k *kit) {
		brk := func(to uint64) uint64 {
			got, _, _ := unix.Syscall(unix.SYS_BRK, uintptr(to), 0, 0)
			return uint64(got)
		}
		const pages = 16
		l := k.newLink(t, pages*page)
		was := brk(0)
		base := (was + page - 1) &^ (page - 1)
		if base == was {
			base += page // the C library's page is not ours
		}
		g := hca.Range{Addr: base, Len: pages * page}
		require.Equal(t, g.End(), brk(g.End()))
		defer brk(was)
		grown := 0
		for range rounds(300) {
			require.NoError(t, l.use(k.cache, g))
			require.NoError(t, l.use(k.cache, g))
			before := k.cache.Stats()
			require.Equal(t, g.End()+pages*page, brk(g.End()+pages*page))
			require.NoError(t, l.use(k.cache, g))
			if after := k.cache.Stats(); before.Regions > 0 && after.Hits == before.Hits+1 {
				grown++
			}
			require.Equal(t, g.End(), brk(g.End())) // what goes was never registered
			require.NoError(t, l.use(k.cache, g))
			require.Equal(t, base+page, brk(base+page))
			require.Equal(t, g.End(), brk(g.End()))
			require.NoError(t, l.use(k.cache, g))
		}
		if k.keeps {
			require.Greater(t, grown, rounds(300)/20, "growing the break must not cost a registration")
		}
		k.verdictOf(t, l)
	})
}
