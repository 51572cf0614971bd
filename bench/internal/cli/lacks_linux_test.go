package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/bench/internal/rig"
	"example.com/holdfast/bench/internal/team"
	"example.com/holdfast/hca"
	"example.com/holdfast/internal/childtest"
)

// pinning is a device without on-demand paging.
type pinning struct{ hca.Device }

func (p pinning) Attr() hca.Attr {
	at := p.Device.Attr()
	at.ODP = hca.ODPCaps{}
	return at
}

// What the device cannot do is left out and named, and the rest runs; who asked
// for it by name is told, and nothing runs in its place.
func TestWhatTheDeviceLacks(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		run := func(args ...string) (string, error) {
			args = append(args, "-msglog", "3:4", "-iter", "10", "-buffers", "same")
			o, err := parse(args)
			require.NoError(t, err)
			g, err := rig.Open(rig.Config{Device: o.device})
			require.NoError(t, err)
			defer func() { require.NoError(t, g.Close()) }()
			for i := range g.Devices {
				g.Devices[i] = pinning{g.Devices[i]}
			}
			var text bytes.Buffer
			err = runBenchmarks(args, o, team.Threads{Rig: g}, &output{w: &text}, newProgress(&text))
			return text.String(), err
		}
		out, err := run()
		require.NoError(t, err, out)
		require.Contains(t, out, "# Backend               : odp: not run, ")
		require.Contains(t, out, "no on-demand paging")
		require.Contains(t, out, "# Not run, because the device cannot: odp.\n")
		require.Equal(t, 2, strings.Count(out, "# Benchmarking PingPong \n"), out)

		out, err = run("-backend", "all")
		require.NoError(t, err, out)
		require.Contains(t, strings.ReplaceAll(out, "\n# ", " "), "cannot: odp-whole, odp-whole+prefetch, odp-windows, odp-windows+prefetch, "+
			"odp-range, odp-range+prefetch.")
		require.Equal(t, 2, strings.Count(out, "# Benchmarking PingPong \n"), out)

		out, err = run("-backend", "direct,odp-range")
		require.ErrorIs(t, err, hca.ErrNotSupported)
		require.ErrorContains(t, err, "odp-range: ")
		require.NotContains(t, out, "# Benchmarking PingPong \n")
	})
}
