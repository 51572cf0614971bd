package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/bench/internal/imb"
	"example.com/holdfast/bench/internal/memory"
	"example.com/holdfast/bench/internal/rig"
	"example.com/holdfast/bench/internal/team"
)

func TestDefaults(t *testing.T) {
	o, err := parse(nil)
	require.NoError(t, err)
	require.Equal(t, &options{names: []string{"PingPong"}, msglog: imb.DefaultMsgLog, iter: imb.DefaultIter,
		backends: []string{"direct", "pin", "odp"}, buffers: memory.Kinds(), device: "live", secs: defaultSecs}, o)
}

func TestFlagsBeforeAndAfterNames(t *testing.T) {
	o, err := parse([]string{"-msglog", "3:4", "pingpong", "-iter", "7,8", "-backend=pin", "-buffers", "pool,same", "-time", "2"})
	require.NoError(t, err)
	require.Equal(t, &options{names: []string{"PingPong"}, msglog: imb.MsgLog{Min: 3, Max: 4},
		iter: imb.Iter{MsgsPerSample: 7, OverallVol: 8, MsgsNonAggr: 100}, iterSet: true,
		backends: []string{"pin"}, named: true, buffers: []memory.Kind{memory.Pool, memory.Same}, device: "live", secs: 2}, o)
	o, err = parse([]string{"-backend", "all"})
	require.NoError(t, err)
	require.Equal(t, rig.AllBackends(), o.backends)
	require.False(t, o.named)
	o, err = parse([]string{"stale", "-iter", "3"})
	require.NoError(t, err)
	require.True(t, o.stale)
	require.Equal(t, 3, o.iter.MsgsPerSample)
}

// What makes no sense gets one line that names it, and status 2; nothing runs.
func TestBadCommandLines(t *testing.T) {
	for _, c := range []struct {
		args string
		says string
	}{
		{"-msglog x", "-msglog"},
		{"-msglog 5:3", "-msglog"},
		{"-msglog 0:40", "-msglog"},
		{"-iter 0", "-iter"},
		{"-iter ten", "-iter"},
		{"-backend fast", `-backend: "fast" is none of direct, pin, odp`},
		{"-backend pin,", "-backend"},
		{"-backend pin+prefetch", `-backend: "pin+prefetch" is none of`},
		{"-trust-odp", "-trust-odp means nothing for live"},
		{"-ranks fiber", `-ranks: "fiber" is neither thread nor process`},
		{"-ranks process", "-ranks: live moves bytes between two ranks of one process only"},
		{"stale -ranks thread", "-ranks means nothing for stale"},
		{"stale -trust-odp -device verbs:mlx5_0", "-trust-odp means nothing for stale"},
		{"-buffers new", "-buffers"},
		{"-device mlx5_0", "-device"},
		{"-device verbs:mlx5_0", "-device"},
		{"-time 0", "-time"},
		{"-time -1", "-time"},
		{"-time NaN", "-time"},
		{"-time soon", "time"},
		{"-nonsense", "nonsense"},
		{"-iter", "iter"},
		{"Allreduce", `"Allreduce" is no benchmark; there are: PingPong, stale`},
		{"PingPong PingPang", "PingPang"},
		{"stale PingPong", "PingPong"},
		{"PingPong stale", "stale"},
		{"stale -buffers same", "-buffers means nothing for stale"},
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 2, Main(strings.Fields(c.args), &stdout, &stderr), c.args)
		require.Empty(t, stdout.String(), c.args)
		require.Equal(t, 1, strings.Count(stderr.String(), "\n"), "%s: one line, not %q", c.args, stderr.String())
		require.Contains(t, stderr.String(), c.says, c.args)
		require.True(t, strings.HasPrefix(stderr.String(), "bench: "), stderr.String())
	}
}

func TestHelp(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Zero(t, Main([]string{"-h"}, &stdout, &stderr))
	require.Empty(t, stderr.String())
	for _, f := range []string{"-msglog", "-iter", "-backend", "-buffers", "-device", "-ranks", "-time", "-trust-odp", "+prefetch", "stale"} {
		require.Contains(t, stdout.String(), f)
	}
}

// Whoever sets the variable of rank 1 without being started as one is told.
func TestNotARank(t *testing.T) {
	t.Setenv(team.Variable, "me")
	var stdout, stderr bytes.Buffer
	require.Equal(t, 1, Main(nil, &stdout, &stderr))
	require.Empty(t, stdout.String())
	require.Contains(t, stderr.String(), "bench, rank 1: HOLDFAST_RANK: not a ticket")
}

func TestBusyLine(t *testing.T) {
	require.Empty(t, busyLine(0, 2))
	require.Empty(t, busyLine(1, 2))
	require.Contains(t, busyLine(1.1, 2), "load 1.1 on 2 processors")
}

func TestWrap(t *testing.T) {
	require.Equal(t, []string{"one two", "three", "fourteenlong", "x"}, wrap("one two three  fourteenlong x", 9))
	require.Empty(t, wrap("", 9))
}
