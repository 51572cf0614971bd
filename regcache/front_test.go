package regcache

import (
	"fmt"
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// inFront: each range is a hit while the table is empty.
func inFront(t *testing.T, c *Cache, gs []hca.Range) {
	defer c.index.table.Store(c.index.table.Swap(newTable(minTable)))
	for _, g := range gs {
		r := c.hit(g.Addr, g.End(), 0, maxProbes)
		require.NotNil(t, r, "%v", g)
		r.Release()
	}
}

// Regions of 19 sizes, and what is asked of the middle of each, are found by the front
// alone, the middle from the second time on. It has them again after it has lost
// everything, but for those that a hit finds without.
func TestFrontAnswers(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{MaxMerge: 1, MaxBytes: math.MaxUint64})
	var starts, middles []hca.Range
	addr := at(0, 1).Addr
	for i := range uint64(19 * 20) {
		g := hca.Range{Addr: addr, Len: pg << (i % 19)}
		starts = append(starts, g)
		middles = append(middles, hca.Range{Addr: g.Addr + g.Len/2, Len: pg / 2})
		addr += g.Len + 3*pg
	}
	for _, g := range starts {
		mustGet(t, c, g, 0).Release()
	}
	misses := c.Stats().Misses
	get := func(gs []hca.Range) {
		for _, g := range gs {
			mustGet(t, c, g, 0).Release()
		}
		require.Equal(t, misses, c.Stats().Misses)
	}
	inFront(t, c, starts)
	get(middles)
	narrow := func(gs []hca.Range) (some []hca.Range) {
		for i, g := range gs {
			if i%19 < 18 {
				some = append(some, g)
			}
		}
		return some
	}
	inFront(t, c, narrow(middles))

	c.index.front.Store(newFront(minFront, c.index.front.Load().page))
	get(starts)
	get(middles)
	inFront(t, c, narrow(starts))
	inFront(t, c, narrow(middles))
	quiet(t, c)
}

// A hint to what has left look-up is gone with the first who sees it, who finds what there
// is now. A hint is as little believed as any entry.
func TestHints(t *testing.T) {
	for _, way := range []string{"get", "hit"} {
		t.Run(way, func(t *testing.T) {
			c, b, m := rig(t, hca.MemOwned, Config{MaxMerge: 1, MaxBytes: math.MaxUint64})
			huge := mustGet(t, c, at(1<<20, 1<<10), 0) // of a wider class than big
			huge.Release()
			big := mustGet(t, c, at(0, 500), 0)
			big.Release()
			inside := at(300, 1)
			f := c.index.front.Load()
			hint := &f.entries[f.slot(inside.Addr)]
			require.Nil(t, hint.Load())
			require.Same(t, big, mustGet(t, c, inside, 0))
			big.Release()
			require.Same(t, big, hint.Load())
			require.True(t, f.isHint(f.slot(inside.Addr), big))
			require.Same(t, big, f.find(inside.Addr, inside.End(), 0))
			require.Nil(t, f.find(inside.Addr, at(500, 1).End(), 0), "longer than it")
			require.Nil(t, f.find(inside.Addr, inside.End(), hca.RemoteWrite), "more than it allows")

			m.event(at(0, 500))
			r := mustGet(t, c, at(300, 2), 0)
			require.NotSame(t, big, r, "its memory has gone")
			r.Release()
			hint.Store(big) // as if nobody had seen it yet; it was taken out once already
			f.hints.Store(1)
			misses, slow := c.Stats().Misses, c.Stats().SlowHits
			if way == "get" {
				require.Same(t, r, mustGet(t, c, inside, 0))
			} else {
				require.Same(t, r, c.hit(inside.Addr, inside.End(), 0, maxProbes))
			}
			r.Release()
			require.Equal(t, misses, c.Stats().Misses)
			require.Equal(t, slow, c.Stats().SlowHits, "and without the lock")
			require.NotSame(t, big, hint.Load())
			quiet(t, c)
			require.NoError(t, invariants(c))
			_, _, twice := b.counts()
			require.Zero(t, twice)
		})
	}
}

// Who asks for every page of a Region, more than there can be hints, pushes out no
// start, and makes no more hints than there can be.
func TestHintsAreBounded(t *testing.T) {
	const pages, small = 4 * maxHints, maxHints * 5 / 4
	c, _, m := rig(t, hca.MemOwned, Config{MaxMerge: 1, MaxRegions: 2 * small, MaxBytes: math.MaxUint64})
	mustGet(t, c, at(1<<30, 4*pages), 0).Release() // the widest
	big := mustGet(t, c, at(0, pages), 0)
	big.Release()
	start := func(i uint64) hca.Range { return at(1<<29+i*3, 2) }
	for i := range uint64(small) {
		mustGet(t, c, start(i), 0).Release()
	}
	walk := func() {
		for i := range uint64(pages) {
			mustGet(t, c, at(i, 1), 0).Release()
		}
	}
	walk()
	f := c.index.front.Load()
	require.Greater(t, len(f.entries), 2*maxHints, "or there is no room for more")
	require.EqualValues(t, maxHints, f.hints.Load())
	require.EqualValues(t, 2+small, c.Stats().Misses)
	lost := 0
	for i := range uint64(small) {
		if f.find(start(i).Addr, start(i).End(), 0) == nil {
			lost++ // there was no place for it
		}
	}
	require.Less(t, lost, small/100)
	require.NoError(t, invariants(c))

	m.event(at(7, 1))
	settle(c)
	require.NoError(t, invariants(c))
	quiet(t, c)
}

// The pages of a Region that a hit finds without the front get no hints if they are too many,
// and do if they are few: they may stand behind others in the table.
func TestNoHintsForTheWidest(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{MaxMerge: 1, MaxBytes: math.MaxUint64})
	for _, g := range []hca.Range{at(maxHints-1, 2*maxHints), at(3*maxHints-2, 2*maxHints)} {
		mustGet(t, c, g, 0).Release()
		for i := uint64(1); i < g.Len/pg; i += 97 {
			mustGet(t, c, hca.Range{Addr: g.Addr + i*pg, Len: pg}, 0).Release()
			r := c.hit(g.Addr+i*pg, g.Addr+i*pg+1, 0, maxProbes)
			require.NotNil(t, r)
			r.Release()
		}
	}
	require.EqualValues(t, 2, c.Stats().Misses)
	require.Zero(t, c.index.front.Load().hints.Load())
	quiet(t, c)

	c, _, _ = rig(t, hca.MemOwned, Config{MaxMerge: 1})
	mustGet(t, c, at(0, 8), 0).Release()
	c.hit(at(5, 1).Addr, at(5, 1).End(), 0, maxProbes).Release()
	require.EqualValues(t, 1, c.index.front.Load().hints.Load())
	quiet(t, c)
}

// Which entry of a full line is taken.
func TestPlacesInTheFront(t *testing.T) {
	f := newFront(minFront, 12)
	at := f.slot(0)
	var line []uint64 // addresses whose pages want the same line
	for addr := uint64(0); len(line) < 3*frontLine; addr += pg {
		if f.slot(addr)^at < frontLine {
			line = append(line, addr)
		}
	}
	region := func(addr uint64) *Region { return &Region{start: addr, end: addr + pg, cold: &cold{}} }
	has := func(r *Region) bool {
		for k := range uint64(frontLine) {
			if f.entries[at^k].Load() == r {
				return true
			}
		}
		return false
	}
	elsewhere := region(1 << 40)
	require.GreaterOrEqual(t, f.slot(elsewhere.start)^at, uint64(frontLine))
	for _, addr := range line[:frontLine] {
		f.put(addr, elsewhere)
	}
	require.EqualValues(t, frontLine, f.hints.Load())
	other := region(1 << 41)
	f.put(line[8], other)
	require.True(t, has(other), "a hint for a hint")
	require.EqualValues(t, frontLine, f.hints.Load())
	var starts []*Region
	for _, addr := range line[:frontLine] {
		starts = append(starts, region(addr))
		f.put(addr, starts[len(starts)-1])
	}
	require.Zero(t, f.hints.Load())
	for _, r := range starts {
		require.True(t, has(r), "a start for a hint")
		require.Same(t, r, f.find(r.start, r.end, 0))
	}
	f.put(line[9], elsewhere)
	require.False(t, has(elsewhere), "no hint for a start")
	late := region(line[10])
	f.put(late.start, late)
	require.False(t, has(late), "no start for a start")
	starts[3].kill()
	f.put(late.start, late)
	require.True(t, has(late) && !has(starts[3]), "but for one that is dead")
	f.put(late.start, late) // once more where there is room
	starts[4].kill()
	f.put(late.start, late)
	f.drop(late)
	require.False(t, has(late), "all that there is of it is dropped")
}

// Nothing that is written shares a pair of lines with what hits read of the front.
func TestLinesOfTheFront(t *testing.T) {
	var f front
	require.GreaterOrEqual(t, unsafe.Offsetof(f.hints)-unsafe.Offsetof(f.entries), uintptr(128))
	require.GreaterOrEqual(t, unsafe.Sizeof(f)-unsafe.Offsetof(f.hints), uintptr(128))
}

// Regions start where pages of the system do, or of the backend if these are smaller.
// Who asks for the end of such a page finds it.
func TestPagesOfTheFront(t *testing.T) {
	for _, page := range []uint64{64, 4096, 1 << 16} {
		var x index
		x.init(page)
		r := &Region{start: 7 * page, end: 9 * page, cold: &cold{}}
		x.insert(r)
		f := x.front.Load()
		for _, addr := range []uint64{7 * page, 8*page - 1} {
			require.Same(t, r, f.entries[f.slot(addr)].Load(), "%d-byte pages, %#x", page, addr)
		}
	}
	c, err := New(&nopBackend{}, Config{})
	require.NoError(t, err)
	require.EqualValues(t, 12, c.index.front.Load().page)
	require.NoError(t, c.Close())
}

// Of Regions that are evenly spaced, with half of the entries in use, more get the first place
// than of Regions without order (79 of 100), and there are few strides for which many
// get none.
func TestStridesInTheFront(t *testing.T) {
	var strides []uint64
	for log := range 14 {
		for _, times := range []uint64{1, 3, 5, 7} {
			strides = append(strides, times<<log, times<<log+1, times<<log+2) // a page or two between
		}
	}
	for _, entries := range []uint64{minFront, 1 << 17} {
		var first, second, nowhere float64
		bad := 0
		for _, stride := range strides {
			f := newFront(int(entries), 12)
			var at [frontLine + 1]uint64 // how many stand where, and in the last, nowhere
			for i := range entries / 2 {
				r := &Region{start: 0x7f1234561<<12 + i*stride<<12}
				r.end = r.start + pg
				f.put(r.start, r)
				k := uint64(0)
				for s := f.slot(r.start); k < frontLine && f.entries[s^k].Load() != r; k++ {
				}
				at[k]++
			}
			part := func(n uint64) float64 { return float64(n) / float64(entries/2) }
			if part(at[frontLine]) > 0.05 {
				bad++
			}
			first += part(at[0]) / float64(len(strides))
			second += part(at[1]) / float64(len(strides))
			nowhere += part(at[frontLine]) / float64(len(strides))
		}
		t.Logf("%d entries: on average %.3f stand first, %.3f second, %.4f nowhere; with %d strides of %d more than 0.05 stand nowhere",
			entries, first, second, nowhere, bad, len(strides))
		require.Greater(t, first, 0.86, fmt.Sprint(entries))
		require.Greater(t, first+second, 0.94)
		require.Less(t, nowhere, 0.01)
		require.LessOrEqual(t, bad, len(strides)/25)
	}
}
