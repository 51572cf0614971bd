package regcache_test

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/regcache"
)

// shape is a piece of a mapping to register: crooked ones too, because users
// have buffers and not pages.
type shape struct {
	pages    uint64 // of the mapping
	off, len uint64 // of the buffer in it
}

var shapes = []shape{
	{1, 0, page},
	{1, 1000, 1},
	{3, page - 7, page + 14}, // touches three pages
	{16, 0, 16 * page},
	{70, 5*page + 5, 60 * page},
}

func (s shape) at(addr uint64) (mapping, buffer hca.Range) {
	return hca.Range{Addr: addr, Len: s.pages * page}, hca.Range{Addr: addr + s.off, Len: s.len}
}

// C1: memory is mapped, used, unmapped, mapped again at the same address and
// used again: the adapter sees the new memory, every time.
func TestC1_SameAddress(t *testing.T) {
	inWorlds(t, time.Minute, nil, append(worlds, trusting), regcache.Config{}, func(t *testing.T, k *kit) {
		l := k.newLink(t, 70*page)
		n := 0
		loop := func(m memory, s shape, times int) {
			mapping, buf := s.at(place(0))
			for range times {
				n++
				k.mapAt(t, m, mapping, isFree)
				require.NoError(t, l.use(k.cache, buf))
				require.NoError(t, l.use(k.cache, buf)) // a hit, where it was kept
				k.unmap(t, mapping)
			}
		}
		loop(memories[0], shapes[3], underRace(rounds(1000), 2))
		for _, m := range memories {
			for _, s := range shapes {
				loop(m, s, rounds(20))
			}
		}
		k.verdictOf(t, l)
		// A Get that comes while the event of the last munmap is on its way may
		// have to use its registration once: often on a machine that is busy.
		k.wantHits(t, n/20)
	})
}

// C1, told by key and not by bytes: what the second Get answers with was
// registered after the memory was mapped again.
func TestC1_NeverTheOldRegistration(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{foreign, owned, strict}, regcache.Config{}, func(t *testing.T, k *kit) {
		mapping, buf := shapes[2].at(place(0))
		var made []*hca.MR
		k.back.on(func(c *counting) { c.after = func(mr *hca.MR) { made = append(made, mr) } })
		for range rounds(500) {
			k.mapAt(t, memories[0], mapping, isFree)
			bytesAt(mapping)[page] = 1
			before := len(made)
			r := k.get(t, buf, allWays)
			require.Greater(t, len(made), before)
			require.Equal(t, made[len(made)-1].LKey, r.LKey())
			r.Release()
			k.unmap(t, mapping)
		}
	})
}

// C2: a mapping is put straight over memory that is cached: over all of it, over
// either half, over a page in the middle, and over more than it. And the same
// with a hole in place of the new mapping, filled only later.
func TestC2_MappedOver(t *testing.T) {
	inWorlds(t, time.Minute, nil, append(worlds, trusting), regcache.Config{}, func(t *testing.T, k *kit) {
		const pages = 8
		l := k.newLink(t, pages*page)
		whole := hca.Range{Addr: place(1), Len: pages * page}
		n := 0
		for _, m := range memories {
			k.mapAt(t, m, whole, isFree)
			for _, over := range []struct{ first, pages uint64 }{{0, 8}, {0, 4}, {4, 4}, {3, 1}, {0, 1}, {7, 1}, {2, 5}} {
				for round := range rounds(20) {
					n++
					require.NoError(t, l.use(k.cache, whole))
					part := hca.Range{Addr: whole.Addr + over.first*page, Len: over.pages * page}
					k.mapAt(t, memories[round%len(memories)], part, unix.MAP_FIXED)
					require.NoError(t, l.use(k.cache, whole))
					// What is over the part alone, and over what it left.
					require.NoError(t, l.use(k.cache, part))
					require.NoError(t, l.use(k.cache, hca.Range{Addr: whole.Addr + 10, Len: 5}))
				}
			}
			k.unmap(t, whole)
		}
		k.verdictOf(t, l)
		k.wantHits(t, n/20)
	})
}

// C2: half of the mapping goes, the Get of the whole fails with a clear error
// and not with the old registration; what is left is still good, and so is the
// whole once the hole is filled.
func TestC2_Hole(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{foreign, owned, ownedBoth, strict, unseen}, regcache.Config{}, func(t *testing.T, k *kit) {
		const pages = 8
		l := k.newLink(t, pages*page)
		whole := hca.Range{Addr: place(1), Len: pages * page}
		k.mapAt(t, memories[0], whole, isFree)
		for _, hole := range []struct{ first, pages uint64 }{{0, 4}, {4, 4}, {3, 1}, {0, 1}, {7, 1}} {
			for range rounds(50) {
				require.NoError(t, l.use(k.cache, whole))
				part := hca.Range{Addr: whole.Addr + hole.first*page, Len: hole.pages * page}
				k.unmap(t, part)
				_, err := k.cache.Get(whole, allWays)
				require.ErrorIs(t, err, hca.ErrBadAddress)
				require.ErrorContains(t, err, whole.String())
				_, err = k.cache.Get(part, allWays)
				require.ErrorIs(t, err, hca.ErrBadAddress)
				if hole.first > 0 {
					require.NoError(t, l.use(k.cache, hca.Range{Addr: whole.Addr, Len: hole.first * page}))
				}
				k.mapAt(t, memories[0], part, isFree)
				require.NoError(t, l.use(k.cache, whole))
			}
		}
		k.unmap(t, whole)
		k.verdictOf(t, l)
	})
}

// C8: a Region is held while its memory is unmapped and other memory mapped
// there. The new memory gets a registration of its own; both live, and the end
// of the old one, early or late, does not touch the new.
func TestC8_HeldWhileReplaced(t *testing.T) {
	inWorlds(t, time.Minute, nil, append(worlds, trusting), regcache.Config{}, func(t *testing.T, k *kit) {
		l := k.newLink(t, 16*page)
		for _, s := range shapes[:4] {
			for round := range rounds(100) {
				mapping, buf := s.at(place(2))
				k.mapAt(t, memories[round%len(memories)], mapping, isFree)
				l.write(bytesAt(buf))
				old := k.get(t, buf, allWays)
				require.NoError(t, l.check(old, bytesAt(buf)))
				k.unmap(t, mapping)
				k.mapAt(t, memories[0], mapping, isFree)
				l.write(bytesAt(buf))
				fresh := k.get(t, buf, allWays)
				require.NoError(t, l.check(fresh, bytesAt(buf)))
				if k.backend == nil && !k.blind {
					require.NotSame(t, old, fresh)
					require.NotEqual(t, old.LKey(), fresh.LKey())
				}
				first, last := old, fresh
				if round%2 == 0 {
					first, last = fresh, old
				}
				first.Release()
				require.NoError(t, l.use(k.cache, buf))
				last.Release()
				require.NoError(t, l.use(k.cache, buf))
				again := k.get(t, buf, allWays)
				require.NoError(t, l.check(again, bytesAt(buf)))
				again.Release()
				k.unmap(t, mapping)
			}
		}
		k.verdictOf(t, l)
	})
}

// C9: two threads map memory at one address, each as soon as the other has
// unmapped it, and use it. The one that is quick registers while the event of
// the other's munmap is still on its way.
func TestC9_TakenOver(t *testing.T) {
	for _, procs := range []string{"", "GOMAXPROCS=1"} {
		name, env := "all_cores", []string(nil)
		if procs != "" {
			name, env = "one_core", []string{procs}
		}
		t.Run(name, func(t *testing.T) {
			inWorlds(t, 2*time.Minute, env, []world{foreign, oneChannel, owned, ownedBoth, strict, alone, trusting}, regcache.Config{}, func(t *testing.T, k *kit) {
				n := rounds(1000)
				if k.name == foreign.name || k.name == inKernel.name { // 10^5 rounds of both together
					n = underRace(rounds(50_000), 3)
				}
				takeOver(t, k, n)
			})
		})
	}
}

func takeOver(t *testing.T, k *kit, n int) {
	mapping, buf := shapes[0].at(place(3))
	thief := func(l *link) func() error {
		return func() error {
			for range n {
				for {
					_, err := k.mem.mmap(mapping, readWrite, anonymous|isFree, -1)
					if err == nil {
						break
					}
					if !errors.Is(err, unix.EEXIST) {
						return err
					}
					runtime.Gosched()
				}
				if err := l.use(k.cache, buf); err != nil {
					return err
				}
				if err := k.mem.munmap(mapping); err != nil {
					return err
				}
			}
			return nil
		}
	}
	l1, l2 := k.newLink(t, page), k.newLink(t, page)
	began := time.Now()
	together(t, thief(l1), thief(l2))
	t.Logf("%d rounds in %v", 2*n, time.Since(began))
	k.verdictOf(t, l1, l2)
}

// C12: the memory goes, and other memory comes, while the registration is under
// way in the backend: what comes of it is not kept.
func TestC12_GoneInsideTheBackend(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{foreign, oneChannel, owned, ownedBoth, strict, trusting}, regcache.Config{}, func(t *testing.T, k *kit) {
		l := k.newLink(t, 16*page)
		for _, s := range shapes[:4] {
			mapping, buf := s.at(place(4))
			for _, when := range []string{"before", "after"} {
				for range rounds(50) {
					k.mapAt(t, memories[0], mapping, isFree)
					l.write(bytesAt(buf))
					// Once, from another thread and with its end awaited: the
					// backend cannot go on before the memory is another.
					swapped := false
					swap := func() {
						if swapped {
							return
						}
						swapped = true
						done := make(chan error)
						go func() {
							runtime.LockOSThread()
							defer runtime.UnlockOSThread()
							err := k.mem.munmap(mapping)
							if err == nil {
								_, err = k.mem.mmap(mapping, readWrite, anonymous|isFree, -1)
							}
							done <- err
						}()
						if err := <-done; err != nil {
							t.Error(err)
						}
					}
					k.back.on(func(c *counting) { c.before, c.after = nil, nil })
					if when == "before" {
						k.back.on(func(c *counting) { c.before = func(hca.Range) { swap() } })
					} else {
						k.back.on(func(c *counting) { c.after = func(*hca.MR) { swap() } })
					}
					r := k.get(t, buf, allWays)
					require.True(t, swapped || k.blind)
					r.Release()
					k.back.on(func(c *counting) { c.before, c.after = nil, nil })
					// The first registration is of memory that is gone.
					require.NoError(t, l.use(k.cache, buf))
					k.unmap(t, mapping)
				}
			}
		}
		k.verdictOf(t, l)
	})
}
