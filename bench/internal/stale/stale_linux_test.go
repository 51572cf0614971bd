package stale

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/bench/internal/rig"
	"example.com/holdfast/internal/childtest"
)

const (
	limit  = 90 * time.Second
	rounds = 30
)

func open(t *testing.T) *rig.Rig {
	t.Helper()
	g, err := rig.Open(rig.Config{Device: "live"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close(), "nothing is left on the devices") })
	return g
}

// With interception nothing is ever wrong, and the cache does keep things.
func TestOn(t *testing.T) {
	for _, env := range [][]string{nil, {"GOMAXPROCS=1"}} {
		name := "default"
		if env != nil {
			name = env[0]
		}
		t.Run(name, func(t *testing.T) {
			childtest.Run(t, limit, env, func(t *testing.T) {
				g := open(t)
				for _, c := range Cases() {
					o, err := Run(context.Background(), g, c, rounds, true)
					require.NoError(t, err)
					require.Zero(t, o.Wrong, c.Name)
					require.GreaterOrEqual(t, o.Transfers, perRound*rounds, c.Name)
					require.NotZero(t, o.Hits, c.Name)
				}
			})
		})
	}
}

// Without it nearly everything is: the device is an honest oracle.
func TestOff(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		g := open(t)
		if !g.Devices[0].Attr().StalePins {
			t.Skipf("this machine's device has no stale pages: %s", g.Devices[0].Attr().Form)
		}
		for _, c := range Cases() {
			o, err := Run(context.Background(), g, c, rounds, false)
			require.NoError(t, err)
			require.Greater(t, o.Wrong, o.Transfers/2, "%s: %+v", c.Name, o)
		}
	})
}

func TestTheLimitEndsALoop(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		g := open(t)
		for _, c := range Cases() {
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			_, err := Run(ctx, g, c, 1<<40, true)
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded, c.Name)
		}
	})
}
