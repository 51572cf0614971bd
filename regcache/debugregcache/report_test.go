package debugregcache

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"example.com/holdfast/hca"
	"example.com/holdfast/regcache"
	"example.com/holdfast/regcache/internal/figures"
)

// fixed is a report in which everything is known, of a cache that has lived.
func fixed() report {
	var s regcache.Stats
	s.UsedOnce[hca.UnkeptLimit], s.UsedOnce[hca.UnkeptNoSource] = 2, 30
	c := cacheReport{
		Name: "mlx5_0", Backend: "pin on mlx5_0", Monitor: "userfaultfd", Config: "at most 100 Regions",
		Counts: map[string]uint64{}, Now: map[string]uint64{}, Regions: limitOf(4, 100), Pinned: limitOf(7<<20, figures.Unlimited),
		UsedOnce: reasons(s.UsedOnce),
		Sees:     seenBy(hca.MonitorStats{Source: "userfaultfd", Unmaps: 12, Announced: 3, Watches: 20, Unknown: [hca.NumUnkept]uint64{hca.UnkeptRefused: 2}, Known: 9, Taints: 1}),
	}
	ratio := 0.99999
	c.HitRatio = &ratio
	for i, f := range figures.All() {
		if f.Unit == "" && i > 2 {
			continue // enough to see the columns
		}
		n := uint64(len(f.Name)) * 1000
		if f.Name == "max_pinned" {
			n = figures.Unlimited
		}
		c.figures = append(c.figures, figure{f, n})
		c.Counts[f.Name] = n
	}
	c.regions([]regcache.RegionInfo{
		{Range: hca.Range{Addr: 0x7f0000000000, Len: 4096}, Access: hca.LocalWrite, Kind: hca.MemHeld, Hits: 12345, Age: 90 * time.Second, Unused: 3 * time.Second, LKey: 0xabc, RKey: 0xabc, Pinned: 4096},
		{Range: hca.Range{Addr: 0x7f0000100000, Len: 1 << 20}, Kind: hca.MemForeign, State: regcache.RegionInUse, References: 2, Hits: 7, Age: 26 * time.Hour, LKey: 2, RKey: 2, Pinned: 1 << 20},
		{Range: hca.Range{Addr: 0x7f0000200000, Len: 3 << 20}, Access: hca.LocalWrite | hca.RemoteWrite, Kind: hca.MemOwned, State: regcache.RegionDead, Why: "its memory went away", References: 1, Age: 2 * time.Hour, LKey: 3, RKey: 3, Pinned: 3 << 20},
		{Range: hca.Range{Addr: 0x7f0000600000, Len: 3 << 20}, Kind: hca.MemUnknown, State: regcache.RegionOnce, Why: "no source sees it end", References: 1, Age: 250 * time.Millisecond, LKey: 4, RKey: 4, Pinned: 3 << 20},
	}, detail{top: 2, all: true})
	return report{Version: 1, Time: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), Process: "mpi (pid 1)", Caches: []cacheReport{c}}
}

func TestTextForm(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, writeText(&out, fixed()))
	golden(t, "report.txt", out.String())
}

// A writer that fails is reported, wherever it fails.
func TestTextReportsTheWriter(t *testing.T) {
	var all bytes.Buffer
	require.NoError(t, writeText(&all, fixed()))
	for room := 0; room < all.Len(); room += 97 {
		require.ErrorIs(t, writeText(&short{room: room}, fixed()), errFull)
	}
}

var errFull = errors.New("full")

type short struct{ room int }

func (s *short) Write(b []byte) (int, error) {
	if len(b) > s.room {
		return 0, errFull
	}
	s.room -= len(b)
	return len(b), nil
}

// What is wrong is said in a sentence, and what is not wrong is not.
func TestTrouble(t *testing.T) {
	says := func(change func(c *cacheReport)) string {
		c := cacheReport{Counts: map[string]uint64{"misses": 100, "registrations": 100}, Now: map[string]uint64{"pinned": 1 << 20}}
		change(&c)
		var all []string
		for _, n := range trouble(c) {
			all = append(all, n.Class+": "+n.Text)
		}
		return strings.Join(all, "\n")
	}
	require.Empty(t, says(func(*cacheReport) {}))
	require.Contains(t, says(func(c *cacheReport) { c.Counts["deregister_errors"] = 1234 }), "bad: 1 234 deregistrations failed")
	require.Contains(t, says(func(c *cacheReport) { c.Counts["events_lost"] = 2 }), "bad: The monitor lost events 2 times")
	require.Contains(t, says(func(c *cacheReport) { c.Counts["failures"] = 2 }), "look: 2 Gets failed")
	require.Contains(t, says(func(c *cacheReport) { c.UsedOnce = []reason{{Count: 30}, {Count: 30}} }), "look: 60 of 100 registrations were used once")
	require.Empty(t, says(func(c *cacheReport) { c.UsedOnce = []reason{{Count: 50}} }))
	require.Contains(t, says(func(c *cacheReport) { c.Counts["evictions"] = 51 }), "look: 51 of 100 registrations were evicted")
	require.Empty(t, says(func(c *cacheReport) { c.Counts["evictions"] = 50 }))
	require.Contains(t, says(func(c *cacheReport) { c.Now["dead"] = 512 << 10 }), "look: 512 KiB are pinned by Regions that are dead")
}

// The bar of a limit is as long as the limit, also if it is exceeded or there is
// none, and its parts touch.
func TestStack(t *testing.T) {
	c := cacheReport{States: make([]group, regcache.NumRegionStates), Pinned: limitOf(3<<20, 4<<20), Regions: limitOf(3, 2)}
	c.States[0], c.States[2] = group{"idle", 2, 0, 2 << 20}, group{"used once", 1, 0, 1 << 20}
	require.Equal(t, []slice{{"idle", 0, 50, "s0"}, {"used once", 50, 25, "s2"}}, stack(c, "pinned"))
	parts := stack(c, "regions") // three of at most two
	require.InDelta(t, 100, parts[0].Width+parts[1].Width, 1e-9)
	require.InDelta(t, parts[0].Width, parts[1].At, 1e-9)
	c.Pinned = limitOf(3<<20, figures.Unlimited)
	parts = stack(c, "pinned")
	require.InDelta(t, 100, parts[0].Width+parts[1].Width, 1e-9)
	require.Empty(t, stack(cacheReport{States: make([]group, regcache.NumRegionStates)}, "pinned"))
}

func TestSizes(t *testing.T) {
	bins := sizes(infos(1, 4096, 4097, 8192, 1<<63, 1<<63+1))
	require.Len(t, bins, 65)
	byLabel := map[string]int{}
	for _, b := range bins {
		byLabel[b.Label] = b.Regions
	}
	require.Equal(t, 1, byLabel["≤ 1 B"])
	require.Equal(t, 1, byLabel["≤ 4 KiB"])
	require.Equal(t, 2, byLabel["≤ 8 KiB"])
	require.Equal(t, 1, byLabel["> 8 EiB"])
	require.Nil(t, bins[64].To)
	require.Equal(t, []bin{}, sizes(nil))
	rapid.Check(t, func(t *rapid.T) {
		lengths := rapid.SliceOfN(rapid.Uint64Range(1, 1<<40), 1, 50).Draw(t, "lengths")
		bins, n := sizes(infos(lengths...)), 0
		for i, b := range bins {
			n += b.Regions
			require.True(t, i == 0 || bins[i-1].To != nil && *bins[i-1].To == b.From, "no gaps")
		}
		require.Equal(t, len(lengths), n)
		require.NotZero(t, bins[0].Regions)
		require.NotZero(t, bins[len(bins)-1].Regions)
	})
}

func infos(lengths ...uint64) []regcache.RegionInfo {
	var list []regcache.RegionInfo
	for i, n := range lengths {
		list = append(list, regcache.RegionInfo{Range: hca.Range{Addr: uint64(i) << 12, Len: n}})
	}
	return list
}

func TestAges(t *testing.T) {
	list := make([]regcache.RegionInfo, 6)
	for i, age := range []time.Duration{0, time.Second - 1, time.Second, 59 * time.Minute, time.Hour, 400 * 24 * time.Hour} {
		list[i].Age = age
	}
	var got []string
	for _, b := range ages(list) {
		got = append(got, fmt.Sprintf("%s:%d", b.Label, b.Regions))
	}
	require.Equal(t, "< 1 s:2 < 10 s:1 < 1 min:0 < 10 min:0 < 1 h:1 < 6 h:1 < 1 d:0 < 1 week:0 ≥ 1 week:1", strings.Join(got, " "))
	require.Len(t, ages(nil), 4)
}

// top is what sorting everything would give.
func TestTop(t *testing.T) {
	weight := func(r *regcache.RegionInfo) uint64 { return r.Hits }
	rapid.Check(t, func(t *rapid.T) {
		list := make([]regcache.RegionInfo, rapid.IntRange(0, 60).Draw(t, "n"))
		for i := range list {
			list[i].Range.Addr, list[i].Hits = uint64(i), rapid.Uint64Range(0, 9).Draw(t, "hits")
		}
		n := rapid.IntRange(0, 70).Draw(t, "top")
		want := slices.DeleteFunc(slices.Clone(list), func(r regcache.RegionInfo) bool { return r.Hits == 0 })
		slices.SortStableFunc(want, func(a, b regcache.RegionInfo) int { return int(b.Hits) - int(a.Hits) })
		got := top(list, n, weight)
		require.Len(t, got, min(n, len(want)))
		for i := range got {
			require.Equal(t, want[i], *got[i])
		}
	})
}

func TestWords(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 999: "999", 1000: "1 000", 12345678: "12 345 678"} {
		require.Equal(t, want, grouped(n))
	}
	for s, want := range map[float64]string{0: "0.0 s", 9.94: "9.9 s", 42: "42 s", 3600: "1 h 0 min", 200: "3 min 20 s", 90061: "1 d 1 h"} {
		require.Equal(t, want, seconds(s))
	}
	for r, want := range map[float64]string{1: "100 %", 0.5: "50.0 %", 0.995: "99.50 %", 0.99999: "99.9990 %", 0.99999999: "99.9999 %"} {
		require.Equal(t, want, ratio(&r))
	}
	require.Equal(t, "–", ratio(nil))
}

// Every state has a colour of its own in the page, in light and in dark.
func TestStatesHaveColours(t *testing.T) {
	css, err := files.ReadFile("page.css")
	require.NoError(t, err)
	for s := range regcache.NumRegionStates {
		require.Equal(t, 2, strings.Count(string(css), fmt.Sprintf("--s%d:", s)), "state %v", s)
		for _, rule := range []string{"rect.s%d {", ".key.s%d {"} {
			require.Contains(t, string(css), fmt.Sprintf(rule, s), "state %v", s)
		}
	}
}
