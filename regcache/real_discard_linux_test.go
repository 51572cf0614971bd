package regcache_test

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
	"example.com/holdfast/regcache"
)

// Advices that throw pages away, each with memory on which it does: what is
// read there afterwards is not what was written.
var discards = []struct {
	name   string
	advice int
	memory []int // in memories
}{
	{"DONTNEED", unix.MADV_DONTNEED, []int{0, 3, 4, 5}},
	{"DONTNEED_LOCKED", unix.MADV_DONTNEED_LOCKED, []int{0, 4}},
	{"REMOVE", unix.MADV_REMOVE, []int{1, 2}},
}

// C3: pages are thrown away under a cached registration: all of them, some, one.
// The next Get answers with what is there now. In worlds that learn when a
// discard is over, what is registered after it is kept; in the others it is
// kept once the owner of the memory says that it is over.
func TestC3_Discarded(t *testing.T) {
	inWorlds(t, time.Minute, nil, append(worlds, trusting), regcache.Config{}, func(t *testing.T, k *kit) {
		const pages = 8
		l := k.newLink(t, pages*page)
		whole := hca.Range{Addr: place(5), Len: pages * page}
		for _, d := range discards {
			for _, m := range d.memory {
				for _, part := range []struct{ first, pages uint64 }{{0, 8}, {0, 1}, {3, 1}, {7, 1}, {2, 4}} {
					for round := range rounds(10) {
						k.mapAt(t, memories[m], whole, isFree)
						require.NoError(t, l.use(k.cache, whole))
						require.NoError(t, l.use(k.cache, whole))
						g := hca.Range{Addr: whole.Addr + part.first*page, Len: part.pages * page}
						require.NoError(t, k.mem.madvise(g, d.advice), d.name)
						require.NoError(t, l.use(k.cache, whole))
						if mon, is := k.mon.(*intercept.Monitor); is && round%2 == 0 {
							require.NoError(t, mon.Settled(g))
						}
						require.NoError(t, l.use(k.cache, whole))
						misses := k.cache.Stats().Misses
						require.NoError(t, l.use(k.cache, whole))
						if k.discards && k.owned && k.name != strict.name {
							require.Equal(t, misses, k.cache.Stats().Misses, "announced and settled, and still not kept")
						}
						require.NoError(t, k.mem.madvise(g, d.advice), d.name)
						require.NoError(t, l.use(k.cache, g))
						k.unmap(t, whole)
					}
				}
			}
		}
		k.verdictOf(t, l)
	})
}

// C3 with MADV_FREE, whose pages the kernel takes when it likes: it cannot as
// long as they are pinned, so the pins have to go without anybody's Get. Then
// it is made to take them.
func TestC3_Freed(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{foreign, owned, strict}, regcache.Config{}, func(t *testing.T, k *kit) {
		const pages = 4
		l := k.newLink(t, pages*page)
		whole := hca.Range{Addr: place(5), Len: pages * page}
		gone := make(chan struct{}, 16)
		k.back.on(func(c *counting) { c.gone = func(*hca.MR) { gone <- struct{}{} } })
		taken := 0
		for range rounds(50) {
			k.mapAt(t, memories[0], whole, isFree)
			require.NoError(t, l.use(k.cache, whole))
			kept := k.cache.Stats().Registered
			for len(gone) > 0 {
				<-gone
			}
			require.NoError(t, k.mem.madvise(whole, unix.MADV_FREE))
			if kept > 0 {
				<-gone // the child's hard limit bounds it
			}
			require.NoError(t, raw{}.madvise(whole, unix.MADV_PAGEOUT))
			for _, b := range bytesAt(whole)[:pages*page/2] {
				if b == 0 { // of the pattern one byte in 256 is
					taken++
				}
			}
			require.NoError(t, l.use(k.cache, whole))
			require.NoError(t, l.use(k.cache, whole))
			k.unmap(t, whole)
		}
		require.Greater(t, taken, page, "the kernel took no page: the test proves nothing")
		k.verdictOf(t, l)
	})
}

// C3 with a second thread that calls Get all the while: what the first gets
// after its madvise has returned is never the old page.
func TestC3_GetsAllTheWhile(t *testing.T) {
	inWorlds(t, 2*time.Minute, nil, []world{foreign, oneChannel, owned, strict, trusting}, regcache.Config{}, func(t *testing.T, k *kit) {
		n := rounds(2000)
		if k.name == foreign.name {
			n = underRace(rounds(20_000), 2)
		}
		l := k.newLink(t, page)
		mon, _ := k.mon.(*intercept.Monitor)
		mapping := hca.Range{Addr: place(6), Len: page}
		k.mapAt(t, memories[0], mapping, isFree)
		var over atomic.Bool
		var got, kept atomic.Uint64
		together(t, func() error {
			defer over.Store(true)
			for got.Load() == 0 {
				runtime.Gosched()
			}
			for round := range n {
				b := bytesAt(mapping)
				l.write(b)
				r, err := k.cache.Get(mapping, allWays)
				if err != nil {
					return err
				}
				r.Release()
				if err := k.mem.madvise(mapping, unix.MADV_DONTNEED); err != nil {
					return err
				}
				l.write(b)
				if r, err = k.cache.Get(mapping, allWays); err != nil {
					return err
				}
				err = l.check(r, b)
				r.Release()
				if err != nil {
					return err
				}
				switch {
				case k.blind:
				case round%4 == 3: // a new mapping is free of doubt
					if err := k.mem.munmap(mapping); err != nil {
						return err
					}
					if _, err := k.mem.mmap(mapping, readWrite, anonymous|isFree, -1); err != nil {
						return err
					}
				default: // or its owner says that it is
					if err := mon.Settled(mapping); err != nil {
						return err
					}
				}
			}
			return nil
		}, func() error {
			for !over.Load() {
				r, err := k.cache.Get(mapping, allWays)
				if errors.Is(err, hca.ErrBadAddress) {
					continue // between munmap and mmap
				}
				if err != nil {
					return err
				}
				got.Add(1)
				if r.UsedOnce() == hca.KeptAllRight {
					kept.Add(1)
				}
				r.Release()
			}
			return nil
		})
		t.Logf("%d rounds; the other thread got %d Regions, %d of them kept", n, got.Load(), kept.Load())
		require.Positive(t, kept.Load(), "nothing was ever kept: the test proves nothing")
		k.unmap(t, mapping)
		k.verdictOf(t, l)
	})
}

// C7: one page in the middle of a held Region of 64 is thrown away. The holder
// goes on with keys that are valid, a new Get of any part of it misses, and the
// old registration is dropped once, when it is released.
func TestC7_PageOfAHeldRegion(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{foreign, oneChannel, owned, ownedBoth, strict}, regcache.Config{}, func(t *testing.T, k *kit) {
		const pages = 64
		l := k.newLink(t, pages*page)
		var dropped keyCounts
		k.back.on(func(c *counting) { c.gone = func(mr *hca.MR) { dropped.add(mr) } })
		whole := hca.Range{Addr: place(7), Len: pages * page}
		for round := range rounds(100) {
			k.mapAt(t, memories[round%2*4], whole, isFree) // private, populated or not
			l.write(bytesAt(whole))
			var mr *hca.MR
			k.back.on(func(c *counting) { c.after = func(m *hca.MR) { mr = m } })
			old := k.get(t, whole, allWays)
			k.back.on(func(c *counting) { c.after = nil })
			require.Equal(t, old.LKey(), mr.LKey)
			hole := hca.Range{Addr: whole.Addr + uint64(1+round%62)*page, Len: page}
			require.NoError(t, k.mem.madvise(hole, unix.MADV_DONTNEED))
			// The keys are good, and for all but the lost page so are the bytes.
			require.NoError(t, l.check(old, bytesAt(hca.Range{Addr: whole.Addr, Len: hole.Addr - whole.Addr})))
			require.NoError(t, l.check(old, bytesAt(hca.Range{Addr: hole.End(), Len: whole.End() - hole.End()})))
			_, err := l.see(old, whole)
			require.NoError(t, err)
			for _, part := range []hca.Range{whole, hole, {Addr: whole.Addr + 5, Len: 7}, {Addr: whole.End() - page, Len: page}} {
				l.write(bytesAt(part))
				r := k.get(t, part, allWays)
				require.NotSame(t, old, r, "%v of %v", part, whole)
				require.NotEqual(t, mr.LKey, r.LKey())
				require.NoError(t, l.check(r, bytesAt(part)))
				r.Release()
			}
			require.Zero(t, dropped.of(mr), "deregistered while it is held")
			old.Release()
			// Before Release returns; or, where no Get has come to know of the
			// event by then, when the reaper does.
			dropped.wait(mr)
			k.unmap(t, whole)
		}
		k.verdictOf(t, l)
	})
}

// keyCounts counts how often each registration was dropped.
type keyCounts struct {
	mu   sync.Mutex
	more chan struct{} // guarded by mu: closed and replaced at each count
	n    map[*hca.MR]int
}

func (c *keyCounts) add(mr *hca.MR) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[*hca.MR]int{}
	}
	c.n[mr]++
	if c.more != nil {
		close(c.more)
		c.more = nil
	}
}

func (c *keyCounts) of(mr *hca.MR) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[mr]
}

// wait waits until mr has been dropped; the child's hard limit bounds it.
func (c *keyCounts) wait(mr *hca.MR) {
	for {
		c.mu.Lock()
		if c.n[mr] > 0 {
			c.mu.Unlock()
			return
		}
		if c.more == nil {
			c.more = make(chan struct{})
		}
		more := c.more
		c.mu.Unlock()
		<-more
	}
}
