package rig

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/bench/internal/memory"
	"example.com/holdfast/bench/internal/pingpong"
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
			g, err := Open("live")
			require.NoError(t, err)
			require.Len(t, g.Lines(), 2)
			require.Contains(t, g.Lines()[0][1], g.Devices[0].Attr().Form)
			for _, name := range Backends() {
				p, err := g.NewPair(name)
				require.NoError(t, err)
				require.Contains(t, p.Name, map[string]string{
					"direct": "pin on live0, registered and deregistered",
					"pin":    "pin on live0, up to 8",
					"odp":    "odp (whole address space) on live0",
				}[name])
				require.Equal(t, name == "direct", p.Caches[0] == nil)
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
		g, err := Open("live")
		require.NoError(t, err)
		defer func() { require.NoError(t, g.Close()) }()
		for _, kind := range memory.Kinds() {
			p, err := g.NewPair("pin")
			require.NoError(t, err)
			var game pingpong.Game
			for i := range game.Ranks {
				src, err := memory.NewSource(g.Mapper, kind, 65536, PoolPairs)
				require.NoError(t, err)
				defer func() { require.NoError(t, src.Close()) }()
				game.Ranks[i] = pingpong.Rank{End: p.Ends[i], Buffers: src}
			}
			const repetitions = 60
			s, err := game.Play(context.Background(), 0, repetitions)
			require.NoError(t, err)
			require.Zero(t, s.Wrong)
			st := p.Caches[0].Stats()
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
	names, err := ParseBackends("odp,direct")
	require.NoError(t, err)
	require.Equal(t, []string{"odp", "direct"}, names)
	for _, bad := range []string{"", "pin,", "Pin", "pin, odp"} {
		_, err := ParseBackends(bad)
		require.ErrorContains(t, err, "direct, pin, odp")
	}
}

func TestCheckDevice(t *testing.T) {
	require.NoError(t, CheckDevice("live"))
	require.ErrorContains(t, CheckDevice("verbs:mlx5_0"), "no verbs devices")
	require.ErrorContains(t, CheckDevice("mlx5_0"), "neither live")
}

// The pool has more buffers than a cache may keep.
func TestPoolIsLargerThanTheCache(t *testing.T) { require.Greater(t, 2*PoolPairs, KeptRegions) }
