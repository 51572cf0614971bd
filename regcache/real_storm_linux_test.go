package regcache_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/regcache"
)

// A storm on the memory of a real process: 64 threads map, use and unmap memory of
// their own as fast as they can, under limits that are too small for them. In full
// (see full) 10^6 mappings end. Afterwards no byte was wrong, every count is exact,
// everything is unpinned although nobody calls Get again, and the process is as
// large as it was after a fifth.
func TestReal_Storm(t *testing.T) {
	const threads = 64
	cfg := regcache.Config{MaxRegions: threads / 8, MaxBytes: threads / 4 * page}
	inWorlds(t, longest(time.Minute), nil, []world{foreign, oneChannel, owned}, cfg, func(t *testing.T, k *kit) {
		each := underRace(rounds(6400), 4) / threads
		if full() {
			each = 1_000_000 / threads
		}
		var links []*link
		for range threads {
			links = append(links, k.newLink(t, 4*page))
		}
		own := pinned(t) // by the links
		var gets atomic.Uint64
		storm := func(rounds int) {
			var fs []func() error
			for i, l := range links {
				fs = append(fs, func() error {
					for n := range rounds {
						// 1 to 4 pages, each size at an address of its own and back again.
						g := hca.Range{Addr: place(40+i) + uint64(n%7)*16*page, Len: uint64(1+n%4) * page}
						if _, err := k.mem.mmap(g, readWrite, anonymous|isFree, -1); err != nil {
							return err
						}
						for range 3 {
							if err := l.use(k.cache, g); err != nil {
								return err
							}
							gets.Add(1)
						}
						if err := k.mem.munmap(g); err != nil {
							return err
						}
					}
					return nil
				})
			}
			together(t, fs...)
			for k.cache.Stats().Registered > 0 { // the child's hard limit bounds it
				runtime.Gosched()
			}
		}
		storm(max(each/5, 1))
		heap, maps := heapInUse(), mappings(t)
		storm(each)
		require.LessOrEqual(t, heapInUse(), heap+512<<10)
		require.LessOrEqual(t, mappings(t), maps+200)
		require.Equal(t, own, pinned(t))
		s := k.cache.Stats()
		require.Equal(t, gets.Load(), s.Hits+s.Misses)
		require.Equal(t, s.Registrations, s.Deregistrations)
		require.Zero(t, s.BytesPinned)
		require.Zero(t, s.BytesDead)
		require.Zero(t, s.InUseOnce)
		require.Zero(t, s.Failures)
		require.Zero(t, k.back.live())
		require.Positive(t, s.Hits)
		require.Positive(t, s.Invalidations)
		if each >= 100 { // in fewer rounds the threads hardly meet
			require.Positive(t, s.Evictions+s.UsedOnce[hca.UnkeptLimit], "the limits were not too small")
		}
		ended := (each + max(each/5, 1)) * threads
		if s.EventsLost == 0 {
			require.GreaterOrEqual(t, s.Events, uint64(ended), "each end of a mapping that was watched is an event")
		}
		t.Logf("%d mappings ended; %d events, %d lost", ended, s.Events, s.EventsLost)
		k.verdictOf(t, links...)
	})
}
