package rig

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
			g, err := Open()
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
	require.ErrorContains(t, CheckDevice("mlx5_0"), "not live")
}

// The pool has more buffers than a cache may keep.
func TestPoolIsLargerThanTheCache(t *testing.T) { require.Greater(t, 2*PoolPairs, KeptRegions) }
