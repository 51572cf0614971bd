package hcatest

import (
	"context"
	"testing"
	"time"

	"example.com/holdfast/hca"
	"github.com/stretchr/testify/require"
)

// limit bounds every wait of the suite.
const limit = 20 * time.Second

// End is one end of a connection: a device with a queue pair and its queues.
type End struct {
	Dev    hca.Device
	SendCQ hca.CQ
	RecvCQ hca.CQ
	QP     hca.QP
}

// NewEnd makes a queue pair on d with completion queues of its own; both live
// until the end of the test.
func NewEnd(t testing.TB, d hca.Device, cfg hca.QPConfig) *End {
	t.Helper()
	e := &End{Dev: d}
	var err error
	if cfg.SendCQ == nil {
		cfg.SendCQ, err = d.NewCQ(256)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, cfg.SendCQ.Close()) })
	}
	if cfg.RecvCQ == nil {
		cfg.RecvCQ, err = d.NewCQ(256)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, cfg.RecvCQ.Close()) })
	}
	e.SendCQ, e.RecvCQ = cfg.SendCQ, cfg.RecvCQ
	e.QP, err = d.NewQP(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = e.QP.Close() }) // ErrClosed where the test closed it
	return e
}

// Connect makes a connected pair of ends.
func Connect(t testing.TB, a, b hca.Device, cfg hca.QPConfig) (*End, *End) {
	t.Helper()
	x, y := NewEnd(t, a, cfg), NewEnd(t, b, cfg)
	require.NoError(t, x.QP.Connect(y.QP.Addr()))
	require.NoError(t, y.QP.Connect(x.QP.Addr()))
	return x, y
}

// Next waits for one completion.
func Next(t testing.TB, cq hca.CQ) hca.WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var wc [1]hca.WC
	for {
		n, err := cq.Poll(wc[:])
		require.NoError(t, err)
		if n == 1 {
			return wc[0]
		}
		require.NoError(t, cq.Wait(ctx), "no completion arrived")
	}
}

// Want waits for one completion and checks its id and status.
func Want(t testing.TB, cq hca.CQ, id uint64, status hca.WCStatus) hca.WC {
	t.Helper()
	wc := Next(t, cq)
	require.Equal(t, status.String(), wc.Status.String(), "of request %d", wc.ID)
	require.Equal(t, id, wc.ID)
	return wc
}

// Quiet checks that nothing is there to be polled.
func Quiet(t testing.TB, cq hca.CQ) {
	t.Helper()
	var wc [1]hca.WC
	n, err := cq.Poll(wc[:])
	require.NoError(t, err)
	require.Zero(t, n, "an unexpected completion: %+v", wc[0])
}

// Everything is all that a pinned or on-demand registration can allow.
const Everything = hca.LocalWrite | hca.RemoteWrite | hca.RemoteRead

// Register registers b until the end of the test.
func Register(t testing.TB, d hca.Device, b []byte, a hca.Access) *hca.MR {
	t.Helper()
	mr, err := d.Register(hca.RangeOf(b), a)
	require.NoError(t, err)
	t.Cleanup(func() { _ = d.Deregister(mr) }) // ErrInvalid where the test did it
	return mr
}

// SGE names b, which lies in mr.
func SGE(mr *hca.MR, b []byte) hca.SGE {
	r := hca.RangeOf(b)
	return hca.SGE{Addr: r.Addr, Len: r.Len, LKey: mr.LKey}
}

// Remote names the start of b, which lies in mr, to a peer.
func Remote(mr *hca.MR, b []byte) hca.RemoteAddr {
	return hca.RemoteAddr{Addr: hca.RangeOf(b).Addr, RKey: mr.RKey}
}
