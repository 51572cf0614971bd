package rig

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/bench/internal/memory"
	"example.com/holdfast/bench/internal/pingpong"
	"example.com/holdfast/hca"
	"example.com/holdfast/internal/childtest"
)

func TestPairs(t *testing.T) {
	childtest.Run(t, time.Minute, nil, func(t *testing.T) {
		fds := func() int {
			e, err := os.ReadDir("/proc/self/fd")
			require.NoError(t, err)
			return len(e)
		}
		open := func() {
			g, err := Open(Config{Device: "live"})
			require.NoError(t, err)
			require.Len(t, g.Lines(), 2)
			require.Contains(t, g.Lines()[0][1], g.Devices[0].Attr().Form)
			for _, name := range append(AllBackends(), "odp", "odp+prefetch") {
				p, err := g.NewPair(name)
				require.NoError(t, err)
				require.NoError(t, g.Lacks(name))
				base, prefetch := strings.CutSuffix(name, "+prefetch")
				require.Contains(t, p.Name, map[string]string{
					"direct":      "pin on live0, registered and deregistered",
					"pin":         "pin on live0, up to 8",
					"odp":         "odp (whole address space) on live0",
					"odp-whole":   "odp (whole address space) on live0",
					"odp-windows": "odp (windows of 1 GiB) on live0",
					"odp-range":   "odp (range by range) on live0",
				}[base])
				require.Equal(t, prefetch, strings.Contains(p.Name, "prefetched before"))
				require.Equal(t, prefetch, p.Sides[0].Prefetcher != nil)
				require.Equal(t, name == "direct", p.Sides[0].Cache == nil)
				require.ErrorContains(t, g.Devices[0].Close(), "busy")
				require.NoError(t, p.Close())
			}
			require.NoError(t, g.Close())
		}
		open() // what the runtime opens for good, it opens now
		before := fds()
		open()
		require.Equal(t, before, fds(), "descriptors")
	})
}

// The kinds of buffers do to the cache what they are there for: one pair hits
// every time, and all others never.
func TestWhatBuffersDoToTheCache(t *testing.T) {
	childtest.Run(t, time.Minute, nil, func(t *testing.T) {
		g, err := Open(Config{Device: "live"})
		require.NoError(t, err)
		defer func() { require.NoError(t, g.Close()) }()
		for _, kind := range memory.Kinds() {
			p, err := g.NewPair("pin")
			require.NoError(t, err)
			const repetitions = 60
			require.Zero(t, play(t, g, p, kind, repetitions))
			st := p.Sides[0].Cache.Stats()
			if kind == memory.Same {
				require.LessOrEqual(t, st.Registrations, uint64(4), "%v: %+v", kind, st)
				require.GreaterOrEqual(t, st.Hits, uint64(2*repetitions-4), "%v: %+v", kind, st)
			} else {
				require.GreaterOrEqual(t, st.Registrations, uint64(2*repetitions), "%v: %+v", kind, st)
				require.Zero(t, st.Hits, "%v: %+v", kind, st)
			}
			require.NoError(t, p.Close())
		}
	})
}

func TestParseBackends(t *testing.T) {
	names, named, err := ParseBackends("odp-range+prefetch,direct,direct")
	require.NoError(t, err)
	require.True(t, named)
	require.Equal(t, []string{"odp-range+prefetch", "direct"}, names)
	names, named, err = ParseBackends("all")
	require.NoError(t, err)
	require.False(t, named)
	require.Len(t, names, 8)
	for _, bad := range []string{"", "pin,", "Pin", "pin, odp", "pin+prefetch", "odp-", "odp+prefetch+prefetch", "pin,all"} {
		_, _, err := ParseBackends(bad)
		require.ErrorContains(t, err, "direct, pin, odp, odp-whole")
	}
}

func TestCheckDevice(t *testing.T) {
	require.NoError(t, CheckDevice("live"))
	require.ErrorContains(t, CheckDevice("verbs:mlx5_0"), "no verbs devices")
	require.ErrorContains(t, CheckDevice("mlx5_0"), "neither live")
}

// The pool has more buffers than a cache may keep.
func TestPoolIsLargerThanTheCache(t *testing.T) { require.Greater(t, 2*PoolPairs, KeptRegions) }

// With prefetch a buffer that stays is made ready once, and one that is new
// each time each time, even at an address that was ready before: the
// prefetcher hears that the memory went away.
func TestPrefetchFollowsTheBuffers(t *testing.T) {
	childtest.Run(t, time.Minute, nil, func(t *testing.T) {
		g, err := Open(Config{Device: "live"})
		require.NoError(t, err)
		defer func() { require.NoError(t, g.Close()) }()
		for _, backend := range []string{"odp-whole+prefetch", "odp-windows+prefetch", "odp-range+prefetch"} {
			for _, kind := range []memory.Kind{memory.Same, memory.FreshSameVA} {
				p, err := g.NewPair(backend)
				require.NoError(t, err)
				const repetitions = 60
				require.Zero(t, play(t, g, p, kind, repetitions))
				st := p.Sides[0].Prefetcher.Stats()
				require.EqualValues(t, 2*repetitions, st.Requests, "%s, %v: %v", backend, kind, st)
				switch {
				case kind == memory.Same && backend == "odp-range+prefetch":
					// Two buffers, with a key each, in 64 neighbouring pages:
					// the prefetcher remembers those of one key.
					require.NotZero(t, st.Done, "%v", st)
				case kind == memory.Same:
					require.GreaterOrEqual(t, st.Warm, uint64(repetitions), "%s: %v", backend, st)
					require.NotZero(t, st.Done, "%s: %v", backend, st)
				default: // a few come too late for their memory
					require.Less(t, st.Warm, uint64(repetitions/4), "%s: %v", backend, st)
					require.Greater(t, st.Done, uint64(repetitions), "%s: %v", backend, st)
				}
				require.NoError(t, p.Close())
			}
		}
	})
}

// play moves messages of 64 KiB and answers how many bytes were wrong.
func play(t *testing.T, g *Rig, p *Pair, kind memory.Kind, repetitions int) (wrong int) {
	t.Helper()
	var game pingpong.Game
	for i := range game.Ranks {
		src, err := memory.NewSource(g.Mapper, kind, 65536, PoolPairs)
		require.NoError(t, err)
		defer func() { require.NoError(t, src.Close()) }()
		game.Ranks[i] = pingpong.Rank{End: p.Ends[i], Buffers: src}
	}
	s, err := game.Play(context.Background(), 0, repetitions)
	require.NoError(t, err)
	return s.Wrong
}

// lesser is a device whose attributes lack something.
type lesser struct {
	hca.Device
	change func(*hca.ODPCaps)
}

func (l lesser) Attr() hca.Attr {
	at := l.Device.Attr()
	l.change(&at.ODP)
	return at
}

// What a device lacks is said of the backends that need it and of no others.
func TestLacks(t *testing.T) {
	g, err := Open(Config{Device: "live"})
	require.NoError(t, err)
	defer func() { require.NoError(t, g.Close()) }()
	for _, c := range []struct {
		change func(*hca.ODPCaps)
		lacks  []string
	}{
		{func(*hca.ODPCaps) {}, nil},
		{func(o *hca.ODPCaps) { o.Implicit = false }, []string{"odp-whole", "odp-whole+prefetch"}},
		{func(o *hca.ODPCaps) { o.Prefetch = false }, []string{"odp-whole+prefetch", "odp-windows+prefetch", "odp-range+prefetch"}},
		{func(o *hca.ODPCaps) { *o = hca.ODPCaps{} }, AllBackends()[2:]},
	} {
		// One device that lacks it is enough.
		cut := &Rig{Devices: []hca.Device{g.Devices[0], lesser{g.Devices[1], c.change}}}
		var lacks []string
		for _, name := range AllBackends() {
			if err := cut.Lacks(name); err != nil {
				require.ErrorIs(t, err, hca.ErrNotSupported)
				lacks = append(lacks, name)
			}
		}
		require.Equal(t, c.lacks, lacks)
	}
}
