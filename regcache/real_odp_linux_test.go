package regcache_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/odpbackend"
	"example.com/holdfast/regcache"
)

var odpWorlds = []world{odpWhole, odpWindows, odpRange}

// C34: on demand, memory is mapped, used and unmapped at one address a great
// many times. Keys, mappings and memory stay what they are, and nothing that is
// counted only goes up but the counts of what was done.
func TestC34_OnDemandForEver(t *testing.T) {
	inWorlds(t, time.Minute, nil, odpWorlds, regcache.Config{}, func(t *testing.T, k *kit) {
		l := k.newLink(t, page)
		g := hca.Range{Addr: place(24), Len: page}
		n := underRace(rounds(100_000), 3)
		var heap, maps, live int
		var first regcache.Stats
		for i := range n {
			_, err := k.mem.mmap(g, readWrite, anonymous|isFree, -1)
			require.NoError(t, err)
			if i%16 == 0 {
				require.NoError(t, l.use(k.cache, g))
			} else {
				r, err := k.cache.Get(g, allWays)
				require.NoError(t, err)
				r.Release()
			}
			require.NoError(t, k.mem.munmap(g))
			if i == n/10 {
				heap, maps, live, first = int(heapInUse()), mappings(t), k.back.live(), k.cache.Stats()
			}
		}
		require.LessOrEqual(t, int(heapInUse()), heap+64<<10)
		require.LessOrEqual(t, mappings(t), maps+10)
		require.Equal(t, live, k.back.live())
		require.LessOrEqual(t, live, 2)
		last := k.cache.Stats()
		require.Equal(t, first.Misses, last.Misses)
		require.Equal(t, first.Registrations, last.Registrations)
		require.Zero(t, last.BytesPinned)
		require.Zero(t, last.Events)
		k.verdictOf(t, l)
	})
}

// C36: prefetch of memory that is thrown away all the time. It ends, well or
// with an error that says that the memory was not there; transfers are right
// all the while.
func TestC36_PrefetchAgainstDiscards(t *testing.T) {
	inWorlds(t, time.Minute, nil, odpWorlds, regcache.Config{}, func(t *testing.T, k *kit) {
		odp := k.back.Backend.(*odpbackend.Backend)
		l := k.newLink(t, 16*page)
		g := hca.Range{Addr: place(25), Len: 256 * page}
		k.mapAt(t, memories[0], g, isFree)
		mine := hca.Range{Addr: g.Addr + 100*page, Len: 16 * page} // nobody discards these
		r := k.get(t, g, allWays)
		var over atomic.Bool
		n := underRace(rounds(1500), 2)
		together(t, func() error {
			defer over.Store(true)
			for i := range n {
				if err := odp.Prefetch(g, i%2 == 0); err != nil {
					return err
				}
				if err := l.use(k.cache, mine); err != nil {
					return err
				}
			}
			return nil
		}, func() error {
			for !over.Load() {
				for _, part := range []hca.Range{{Addr: g.Addr, Len: 100 * page}, {Addr: mine.End(), Len: 50 * page}} {
					if err := k.mem.madvise(part, unix.MADV_DONTNEED); err != nil {
						return err
					}
				}
			}
			return nil
		})
		r.Release()
		k.unmap(t, g)
		k.verdictOf(t, l)
	})
}

// C37: posted prefetches of memory that is unmapped before they run, or whose
// registration is dropped at once. Each completes, with its id and a status,
// and nothing else happens.
func TestC37_PrefetchOfWhatIsGone(t *testing.T) {
	inWorlds(t, time.Minute, nil, odpWorlds, regcache.Config{}, func(t *testing.T, k *kit) {
		odp := k.back.Backend.(*odpbackend.Backend)
		l := k.newLink(t, 64*page)
		cq, err := k.a.NewCQ(64)
		require.NoError(t, err)
		defer func() { require.NoError(t, cq.Close()) }()
		g := hca.Range{Addr: place(26), Len: 64 * page}
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
		defer cancel()
		gone, well := 0, 0
		for round := range rounds(500) {
			k.mapAt(t, memories[round%len(memories)], g, isFree)
			mr, err := odp.Register(g, allWays)
			require.NoError(t, err)
			const many = 8
			for i := range uint64(many) {
				part := hca.Range{Addr: g.Addr + i*8*page, Len: 8 * page}
				require.NoError(t, odp.PostPrefetch(cq, uint64(round)<<8|i, part, i%2 == 0))
			}
			if round%2 == 0 {
				k.unmap(t, g)
				require.NoError(t, odp.Deregister(mr))
			} else {
				require.NoError(t, odp.Deregister(mr))
				k.unmap(t, g)
			}
			seen := map[uint64]bool{}
			for len(seen) < many {
				var wc [4]hca.WC
				m, err := cq.Poll(wc[:])
				require.NoError(t, err)
				for _, wc := range wc[:m] {
					require.Equal(t, hca.WCAdvise, wc.Op)
					require.Equal(t, uint64(round), wc.ID>>8)
					require.False(t, seen[wc.ID], "twice")
					seen[wc.ID] = true
					switch {
					case wc.Err == nil:
						require.Equal(t, hca.WCSuccess, wc.Status)
						well++
					default:
						require.NotEqual(t, hca.WCSuccess, wc.Status)
						require.True(t, errors.Is(wc.Err, hca.ErrBadAddress) || errors.Is(wc.Err, hca.ErrInvalid) || errors.Is(wc.Err, hca.ErrAgain), "%v", wc.Err)
						gone++
					}
				}
				if len(seen) < many {
					require.NoError(t, cq.Wait(ctx))
				}
			}
			// What is prefetched synchronously and is not there is an error.
			mr, err = odp.Register(g, allWays)
			require.NoError(t, err)
			require.ErrorIs(t, odp.Prefetch(g, true), hca.ErrBadAddress)
			require.NoError(t, odp.Deregister(mr))
			err = odp.Prefetch(hca.Range{Addr: place(27), Len: page}, true) // registered only where everything is
			require.True(t, errors.Is(err, hca.ErrInvalid) || errors.Is(err, hca.ErrBadAddress), "%v", err)
			k.mapAt(t, memories[0], g, isFree)
			require.NoError(t, l.use(k.cache, g))
			k.unmap(t, g)
		}
		t.Logf("%d prefetches found nothing, %d were done", gone, well)
		require.Positive(t, gone)
		k.verdictOf(t, l)
	})
}
