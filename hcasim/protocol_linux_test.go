package hcasim

import (
	"testing"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
	"github.com/stretchr/testify/require"
)

// These tests play one side of a race by hand, step by step.

func queuePairs(t *testing.T, cfg hca.QPConfig) (x, y *hcatest.End, qx, qy *queuePair) {
	a, b := pair(t, FabricConfig{Lesser: true}) // no memory is touched
	x, y = hcatest.Connect(t, a, b, cfg)
	return x, y, x.QP.(*queuePair), y.QP.(*queuePair)
}

// A receive that is posted after the driver saw none, and before it noted that
// it waits, is not slept through.
func TestKickWhileDriving(t *testing.T) {
	_, y, qx, qy := queuePairs(t, hca.QPConfig{})
	qx.driving = true // this test is the driver
	require.Equal(t, statusNotReady, qy.begin(qx, true))
	require.NoError(t, y.QP.PostRecv(hca.RecvWR{}))
	qx.mu.Lock()
	require.Equal(t, statusNotReady, qx.waitReadyLocked())
	require.False(t, qx.rnr.waiting, "the driver has to look again")
	qx.driving = false
	qx.mu.Unlock()
}

// An error at the responder while the peer is at work in it flushes after
// that, not under its feet.
func TestFailWhileInbound(t *testing.T) {
	_, y, qx, qy := queuePairs(t, hca.QPConfig{})
	require.NoError(t, y.QP.PostRecv(hca.RecvWR{ID: 1}))
	require.NoError(t, y.QP.PostRecv(hca.RecvWR{ID: 2}))
	require.Equal(t, hca.WCSuccess, qy.begin(qx, true))
	qy.fail()
	hcatest.Quiet(t, y.RecvCQ)
	qy.end(recvResult{status: hca.WCSuccess, op: hca.WCRecv, wr: &hca.SendWR{Op: hca.Send}})
	hcatest.Want(t, y.RecvCQ, 1, hca.WCSuccess)
	hcatest.Want(t, y.RecvCQ, 2, hca.WCWRFlushErr)
}

// The timer of a wait that is over does nothing to the next one.
func TestOldTimer(t *testing.T) {
	x, y, qx, _ := queuePairs(t, hca.QPConfig{RNRRetry: 7, RNRTimer: 1 << 40})
	require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.Send}))
	old := qx.rnr.serial
	require.NoError(t, y.QP.PostRecv(hca.RecvWR{ID: 1}))
	hcatest.Want(t, x.SendCQ, 1, hca.WCSuccess)
	require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.Send}))
	qx.expire(old)
	hcatest.Quiet(t, x.SendCQ)
	qx.expire(qx.rnr.serial)
	hcatest.Want(t, x.SendCQ, 2, hca.WCRNRRetryExcErr)
}

// Memory that goes away between the kernel's word that it is there and the
// atomic instruction is an error, not the end of the process.
func TestAtomicFaults(t *testing.T) {
	hole := hcatest.Hole(t, 2*page, page, 2*page)
	for _, op := range []hca.Op{hca.AtomicFetchAdd, hca.AtomicCmpSwap} {
		_, bad := atomicAt(hca.RangeOf(hole[page:]).Addr, &hca.SendWR{Op: op})
		require.Equal(t, sideTarget, bad)
		_, bad = atomicAt(hca.RangeOf(hole).Addr, &hca.SendWR{Op: op})
		require.Equal(t, sideNone, bad)
	}
}
