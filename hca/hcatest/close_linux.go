package hcatest

import (
	"testing"

	"example.com/holdfast/hca"
	"github.com/stretchr/testify/require"
)

var closeParts = []part{
	{name: "Busy", run: testCloseBusy},
}

// A device does not close over what is in use, and says how much that is. That
// it closes without, and leaves nothing, the end of every part shows.
func testCloseBusy(t *testing.T, a, _ hca.Device) {
	mr, err := a.Register(hca.RangeOf(Map(t, page)), 0)
	require.NoError(t, err)
	cq, err := a.NewCQ(4)
	require.NoError(t, err)
	qp, err := a.NewQP(hca.QPConfig{SendCQ: cq})
	require.NoError(t, err)
	err = a.Close()
	require.ErrorIs(t, err, hca.ErrBusy)
	require.ErrorContains(t, err, "1 queue pair")
	require.ErrorContains(t, err, "1 registration")
	require.NoError(t, qp.Close())
	require.ErrorIs(t, a.Close(), hca.ErrBusy)
	require.NoError(t, a.Deregister(mr))
	require.NoError(t, cq.Close())
}
