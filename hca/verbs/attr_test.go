//go:build linux && cgo && verbs

package verbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// What the device says of itself makes sense and is the same every time.
func TestAttr(t *testing.T) {
	d := open(t)
	at := d.Attr()
	t.Logf("%+v", at)
	require.Equal(t, adapter(t), at.Name)
	require.EqualValues(t, page, at.PageSize)
	for name, n := range map[string]int{"MaxMR": at.MaxMR, "MaxQP": at.MaxQP, "MaxCQ": at.MaxCQ, "MaxCQE": at.MaxCQE, "MaxSGE": at.MaxSGE, "MaxWR": at.MaxWR} {
		require.Positive(t, n, name)
	}
	require.LessOrEqual(t, at.MaxSGE, 16)
	require.NotZero(t, at.MaxMsg)
	require.LessOrEqual(t, at.MaxMRSize, uint64(maxLen))
	require.True(t, at.StalePins)
	require.False(t, at.PinsForWriting)
	require.Contains(t, at.Form, "libibverbs, port 1")
	require.False(t, at.ODP.Prefetch && !at.ODP.Support)
	require.False(t, at.ODP.Implicit && !at.ODP.Support)
	if d.softRoCE() {
		require.True(t, at.UD)
		require.Equal(t, hca.ReregCaps{Access: true}, at.Rereg)
		require.Zero(t, at.ODP.UC)
		require.Zero(t, at.ODP.XRC)
	}
	if at.ODP.Support {
		require.True(t, at.ODP.RC.Has(hca.ODPSend|hca.ODPRecv|hca.ODPWrite|hca.ODPRead), "%b", at.ODP.RC)
	}
	require.Equal(t, at, open(t).Attr())
	require.Zero(t, d.Counters().Registrations, "what Open tried is not counted")
}
