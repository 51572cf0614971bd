package regcache

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

func TestColdLayout(t *testing.T) {
	if debugging {
		t.Skip("traced Regions are larger")
	}
	require.LessOrEqual(t, unsafe.Sizeof(cold{}), uintptr(80), "the next size of an allocation is 96 bytes")
	require.Greater(t, unsafe.Sizeof(cold{}), unsafe.Sizeof(Region{}), "or they share their pages with Regions")
}

func TestSnapshotOfNothing(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{SweepEvery: -1})
	require.Empty(t, c.Snapshot())
}

// Every state that a Region can be in, each with all that is known of it.
func TestSnapshotShowsEveryState(t *testing.T) {
	hold, entered := make(chan struct{}), make(chan struct{}, 1)
	c, b, m := rig(t, hca.MemOwned, Config{SweepEvery: -1, MaxBytes: 64 * pg})
	all := hca.LocalWrite | hca.RemoteWrite

	idle := mustGet(t, c, at(0, 2), all)
	idle.Release()
	inUse := mustGet(t, c, at(10, 1), 0)
	again := mustGet(t, c, at(10, 1), 0)
	dead := mustGet(t, c, at(200, 1), hca.RemoteRead)
	m.event(at(200, 1))
	mustGet(t, c, at(300, 1), 0).Release() // a miss, which applies the event

	// The reaper is kept inside the backend by one Region, so that the next
	// one that dies stays in its list.
	b.onDeregister = func(*hca.MR) error {
		select {
		case entered <- struct{}{}:
			<-hold
		default:
		}
		return nil
	}
	m.event(at(300, 1))
	within(t, entered) // from here on at(300, 1) is at the backend, and not listed
	mustGet(t, c, at(400, 3), 0).Release()
	entered <- struct{}{} // nobody else waits for hold
	m.event(at(400, 3))
	mustGet(t, c, at(500, 1), 0).Release()
	once := mustGet(t, c, at(20, 100), 0) // does not fit into MaxBytes

	list := c.Snapshot()
	for i := range list {
		require.Less(t, list[i].Age, time.Minute)
		require.Less(t, list[i].Unused, time.Minute)
		list[i].Age, list[i].Unused = 0, 0
	}
	key := func(r *Region) uint32 { return r.LKey() }
	require.Equal(t, []RegionInfo{
		{Range: at(0, 2), Access: all, Kind: hca.MemOwned, State: RegionIdle, LKey: key(idle), RKey: key(idle), Pinned: 2 * pg},
		{Range: at(10, 1), Kind: hca.MemOwned, State: RegionInUse, References: 2, Hits: 1, LKey: key(inUse), RKey: key(inUse), Pinned: pg},
		{Range: at(20, 100), Kind: hca.MemOwned, State: RegionOnce, Why: "no room within the limits", References: 1, LKey: key(once), RKey: key(once), Pinned: 100 * pg},
		{Range: at(200, 1), Access: hca.RemoteRead, Kind: hca.MemOwned, State: RegionDead, Why: "its memory went away", References: 1, LKey: key(dead), RKey: key(dead), Pinned: pg},
		{Range: at(400, 3), Kind: hca.MemOwned, State: RegionDying, Why: "its memory went away", LKey: list[4].LKey, RKey: list[4].RKey, Pinned: 3 * pg},
	}, slices.DeleteFunc(slices.Clone(list), func(i RegionInfo) bool { return i.Range == at(500, 1) }))

	// What is listed and what is registered differ by what the backend drops.
	s := c.Stats()
	require.Equal(t, s.Registered-1, len(list))

	close(hold)
	for _, r := range []*Region{inUse, again, once, dead} {
		r.Release()
	}
	quiet(t, c)
	require.Equal(t, []hca.Range{at(0, 2), at(10, 1), at(500, 1)}, ranges(c.Snapshot()))
}

// A Region that was revoked is listed once, before its deregistration and after
// it until its last Release, and pins nothing any more.
func TestSnapshotOfARevokedRegion(t *testing.T) {
	c, b, m := rig(t, hca.MemOwned, Config{SweepEvery: -1})
	entered, hold := make(chan struct{}), make(chan struct{})
	r := mustGet(t, c, at(0, 1), 0)
	x, err := r.Export()
	require.NoError(t, err)
	key := r.LKey()
	mustGet(t, c, at(8, 1), 0).Release()
	b.onDeregister = func(*hca.MR) error { entered <- struct{}{}; <-hold; return nil }
	m.event(at(8, 1))
	within(t, entered) // the reaper is busy: what is revoked now waits for it
	m.event(at(0, 1))
	mustGet(t, c, at(4, 1), 0).Release()
	see := func(pinned uint64) {
		t.Helper()
		list := c.Snapshot()
		require.Len(t, list, 2)
		list[0].Age = 0
		require.Equal(t, RegionInfo{Range: at(0, 1), Kind: hca.MemOwned, State: RegionRevoked, Why: "its memory went away",
			References: 1, LKey: key, RKey: key, Pinned: pinned}, list[0])
	}
	see(pg)
	hold <- struct{}{}
	within(t, entered)
	hold <- struct{}{}
	within(t, x.Revoked())
	see(0)
	b.onDeregister = nil
	r.Release()
	require.Equal(t, []hca.Range{at(4, 1)}, ranges(c.Snapshot()))
	x.Close()
}

// within waits for something that has to come.
func within(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		require.FailNow(t, "it did not come")
	}
}

func ranges(list []RegionInfo) []hca.Range {
	var out []hca.Range
	for _, i := range list {
		out = append(out, i.Range)
	}
	return out
}

// A Snapshot agrees with Stats about what it lists, and is sorted.
func TestSnapshotAgreesWithStats(t *testing.T) {
	c, _, _ := rig(t, hca.MemForeign, Config{SweepEvery: -1})
	for i := range uint64(1000) {
		r := mustGet(t, c, at(i*7919%1000*4, 1+i%3), 0)
		if i%10 != 0 {
			r.Release()
		} else {
			defer r.Release()
		}
		mustGet(t, c, at(i*7919%1000*4, 1), 0).Release()
	}
	s, list := c.Stats(), c.Snapshot()
	require.Len(t, list, s.Regions)
	var bytes, hits uint64
	inUse := 0
	for _, i := range list {
		bytes += i.Pinned
		hits += i.Hits
		inUse += i.References
	}
	require.Equal(t, s.BytesPinned, bytes)
	require.Equal(t, s.Hits, hits)
	require.Equal(t, 100, inUse)
	require.True(t, slices.IsSortedFunc(list, func(a, b RegionInfo) int { return cmp.Compare(a.Range.Addr, b.Range.Addr) }))
}

// Age counts from the registration and Unused from the last Get, as far as that
// is known: never less than the truth allows, and 0 while in use.
func TestSnapshotAgeAndUnused(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{SweepEvery: -1})
	mustGet(t, c, at(0, 1), 0).Release()
	mustGet(t, c, at(2, 1), 0).Release()
	held := mustGet(t, c, at(4, 1), 0)
	defer held.Release()
	c.made = c.made.Add(-time.Hour) // an hour goes by
	mustGet(t, c, at(2, 1), 0).Release()
	list := c.Snapshot()
	require.Len(t, list, 3)
	for _, i := range list {
		require.InDelta(t, time.Hour, i.Age, float64(time.Minute))
	}
	require.InDelta(t, time.Hour, list[0].Unused, float64(time.Minute))
	require.Less(t, list[1].Unused, time.Minute, "the hit is newer")
	require.Zero(t, list[2].Unused, "it is in use")
	c.made = c.made.Add(-time.Hour)
	mustGet(t, c, at(6, 1), 0).Release()
	list = c.Snapshot()
	require.InDelta(t, time.Hour, list[1].Unused, float64(time.Minute), "Snapshot itself is no use")
	require.InDelta(t, 2*time.Hour, list[1].Age, float64(time.Minute))
	require.Less(t, list[3].Age, time.Minute, "it is young in an old cache")
}

// Snapshots while everything else goes on: for the race detector, and no entry
// is ever torn.
func TestSnapshotConcurrently(t *testing.T) {
	c, _, m := rig(t, hca.MemForeign, Config{SweepEvery: -1, MaxRegions: 50})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for g := range uint64(3) {
		wg.Go(func() {
			for i := uint64(0); ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				r, err := c.Get(at((i*13+g)%80*4, 1+g), 0)
				if err != nil {
					panic(err)
				}
				if i%7 == 0 {
					m.event(at(i%80*4, 1))
				}
				r.Release()
			}
		})
	}
	for range 300 {
		for _, i := range c.Snapshot() {
			pages := i.Range.Len / pg
			if pages < 1 || pages > 3 || i.Pinned != i.Range.Len || i.LKey != i.RKey || i.State >= NumRegionStates ||
				(i.State == RegionIdle || i.State == RegionInUse) != (i.Why == "") {
				t.Errorf("torn: %+v", i)
			}
		}
	}
	close(stop)
	wg.Wait()
}

func TestStatesHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for s := range NumRegionStates {
		require.NotEqual(t, "unknown", s.String())
		seen[s.String()] = true
	}
	require.Len(t, seen, int(NumRegionStates))
	require.Equal(t, "unknown", NumRegionStates.String())
	reasons := map[string]bool{}
	for e := endGivenUp; e <= endClosed; e++ {
		reasons[e.String()] = true
	}
	require.Len(t, reasons, int(endClosed)+1)
}

func TestTick(t *testing.T) {
	require.Equal(t, time.Duration(0), tickOf(time.Hour).since(time.Hour))
	require.Equal(t, time.Hour, tickOf(0).since(time.Hour))
	require.InDelta(t, time.Second, tickOf(time.Hour).since(time.Hour+time.Second), float64(tickLength))
	require.Equal(t, time.Duration(0), tickOf(time.Hour).since(time.Minute), "never negative")
	forever := 20 * 365 * 24 * time.Hour
	require.LessOrEqual(t, tickOf(forever).since(forever), 13*365*24*time.Hour)
}

// How long Snapshot holds the lock, and how much it allocates.
func BenchmarkSnapshot(b *testing.B) {
	for _, n := range []uint64{1024, 65536} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c, err := New(&nopBackend{}, Config{Monitor: &scriptMonitor{kind: hca.MemOwned}, MaxBytes: 1 << 40, SweepEvery: -1})
			require.NoError(b, err)
			defer c.Close()
			for i := range n {
				r, err := c.Get(at(i*4, 1), 0)
				require.NoError(b, err)
				r.Release()
			}
			b.ReportAllocs()
			held := time.Duration(0)
			room := make([]RegionInfo, 0, n)
			for b.Loop() {
				if len(c.Snapshot()) != int(n) {
					b.Fatal("not all")
				}
				c.mu.Lock()
				began := time.Now()
				room = c.listLocked(room[:0])
				held += time.Since(began)
				c.mu.Unlock()
			}
			b.ReportMetric(float64(held.Microseconds())/float64(b.N), "us-locked/op")
		})
	}
}
