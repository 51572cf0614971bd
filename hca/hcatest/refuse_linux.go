package hcatest

import (
	"testing"

	"example.com/holdfast/hca"
	"github.com/stretchr/testify/require"
)

var refuseParts = []part{
	{name: "OwnMemory", run: testOwnMemory},
	{name: "PeerMemory", run: testPeerMemory},
	{name: "ReceiveMemory", run: testReceiveMemory},
	{name: "ReceiveTooShort", run: testReceiveTooShort},
	{name: "PeerGone", run: testPeerGone},
	{name: "PostErrors", run: testPostErrors},
	{name: "ConnectErrors", run: testConnectErrors},
	{name: "QPErrors", run: testQPErrors},
}

// wantError checks that a queue pair went into error and stays usable only for
// flushing.
func wantError(t *testing.T, e *End) {
	t.Helper()
	require.Equal(t, hca.QPError, e.QP.State())
	require.NoError(t, e.QP.PostRecv(hca.RecvWR{ID: 99}))
	Want(t, e.RecvCQ, 99, hca.WCWRFlushErr)
}

// Own memory that the key does not stand for is a local error, and nothing
// moves.
func testOwnMemory(t *testing.T, a, b hca.Device) {
	type wrong struct {
		name string
		op   hca.Op
		sge  func(r *rig, readOnly *hca.MR) hca.SGE
	}
	over := func(r *rig, _ *hca.MR) hca.SGE {
		s := SGE(r.ms, r.src)
		s.Len++
		return s
	}
	for _, w := range []wrong{
		{"unknown key", hca.RDMAWrite, func(r *rig, _ *hca.MR) hca.SGE { s := SGE(r.ms, r.src); s.LKey ^= 0x55555; return s }},
		{"key of the peer", hca.RDMAWrite, func(r *rig, _ *hca.MR) hca.SGE { return SGE(r.md, r.dst) }},
		{"one byte too long", hca.RDMAWrite, over},
		{"one byte too long, send", hca.Send, over},
		{"one byte too early", hca.RDMAWrite, func(r *rig, _ *hca.MR) hca.SGE { s := SGE(r.ms, r.src[:8]); s.Addr--; return s }},
		{"past the end of the world", hca.RDMAWrite, func(r *rig, _ *hca.MR) hca.SGE { s := SGE(r.ms, r.src[:8]); s.Addr = ^uint64(3); return s }},
		{"read into memory for reading", hca.RDMARead, func(r *rig, ro *hca.MR) hca.SGE { return SGE(ro, r.src) }},
	} {
		r := newRig(t, a, b, page, hca.QPConfig{})
		ro := Register(t, a, r.src, hca.LocalRead)
		require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: 5, SGE: SGE(r.md, r.dst)}), w.name)
		require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 1, Op: w.op, SGE: w.sge(r, ro), Remote: Remote(r.md, r.dst)}), w.name)
		Want(t, r.x.SendCQ, 1, hca.WCLocProtErr)
		wantError(t, r.x)
		require.Equal(t, make([]byte, page), r.dst, w.name)
		require.Equal(t, hca.QPReady, r.y.QP.State(), "%s: the peer did nothing wrong", w.name)
	}
}

// The peer's memory is guarded by its key, its bounds and its rights.
func testPeerMemory(t *testing.T, a, b hca.Device) {
	for _, w := range []struct {
		name   string
		op     hca.Op
		access hca.Access
		change func(r *hca.RemoteAddr)
		ok     bool
	}{
		{"write allowed", hca.RDMAWrite, hca.LocalWrite | hca.RemoteWrite, nil, true},
		{"read allowed", hca.RDMARead, hca.RemoteRead, nil, true},
		{"write with a right to read", hca.RDMAWrite, hca.LocalWrite | hca.RemoteRead, nil, false},
		{"read with a right to write", hca.RDMARead, hca.LocalWrite | hca.RemoteWrite, nil, false},
		{"write with no remote right", hca.RDMAWrite, hca.LocalWrite, nil, false},
		{"unknown key", hca.RDMAWrite, Everything, func(r *hca.RemoteAddr) { r.RKey ^= 0x2aaaa }, false},
		{"key 0", hca.RDMAWrite, Everything, func(r *hca.RemoteAddr) { r.RKey = 0 }, false},
		{"one byte too far", hca.RDMARead, Everything, func(r *hca.RemoteAddr) { r.Addr++ }, false},
		{"one byte too early", hca.RDMAWrite, Everything, func(r *hca.RemoteAddr) { r.Addr-- }, false},
	} {
		r := newRig(t, a, b, page, hca.QPConfig{})
		md := Register(t, b, r.dst, w.access)
		remote := Remote(md, r.dst)
		if w.change != nil {
			w.change(&remote)
		}
		require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: 5, SGE: SGE(r.md, r.dst)}))
		require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 1, Op: w.op, SGE: SGE(r.ms, r.src), Remote: remote}))
		if w.ok {
			Want(t, r.x.SendCQ, 1, hca.WCSuccess)
			continue
		}
		wc := Next(t, r.x.SendCQ)
		require.Equal(t, hca.WCRemAccessErr.String(), wc.Status.String(), w.name)
		require.Equal(t, make([]byte, page), r.dst, w.name)
		wantError(t, r.x)
		Want(t, r.y.RecvCQ, 5, hca.WCWRFlushErr) // the responder of a reliable connection is in error too
	}
}

// A receive into memory that it may not use fails at both ends.
func testReceiveMemory(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, hca.QPConfig{})
	ro := Register(t, b, r.dst, hca.LocalRead)
	require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: 1, SGE: SGE(ro, r.dst)}))
	require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: 2, SGE: SGE(r.md, r.dst)}))
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 3, Op: hca.Send, SGE: SGE(r.ms, r.src)}))
	Want(t, r.y.RecvCQ, 1, hca.WCLocProtErr)
	Want(t, r.y.RecvCQ, 2, hca.WCWRFlushErr)
	Want(t, r.x.SendCQ, 3, hca.WCRemOpErr)
	wantError(t, r.x)
	wantError(t, r.y)
}

func testReceiveTooShort(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, hca.QPConfig{})
	require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: 1, SGE: SGE(r.md, r.dst[:99])}))
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 3, Op: hca.Send, SGE: SGE(r.ms, r.src[:100])}))
	Want(t, r.y.RecvCQ, 1, hca.WCLocLenErr)
	Want(t, r.x.SendCQ, 3, hca.WCRemInvReqErr)
	wantError(t, r.x)
	wantError(t, r.y)
}

func testPeerGone(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, hca.QPConfig{})
	require.NoError(t, r.y.QP.Close())
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 3, Op: hca.RDMAWrite, SGE: SGE(r.ms, r.src), Remote: Remote(r.md, r.dst)}))
	Want(t, r.x.SendCQ, 3, hca.WCRetryExcErr)
	wantError(t, r.x)
}

// What PostSend and PostRecv refuse is not queued, and the queue pair works on.
func testPostErrors(t *testing.T, a, b hca.Device) {
	lone := NewEnd(t, a, hca.QPConfig{})
	require.ErrorIs(t, lone.QP.PostSend(hca.SendWR{Op: hca.Send}), hca.ErrInvalid, "not connected")
	r := newRig(t, a, b, page, hca.QPConfig{MaxSend: 2, MaxRecv: 2, MaxSGE: 2})
	s := SGE(r.ms, r.src)
	long := s
	long.Len = a.Attr().MaxMsg
	require.ErrorIs(t, r.x.QP.PostSend(hca.SendWR{Op: 200, SGE: s}), hca.ErrInvalid)
	require.ErrorIs(t, r.x.QP.PostSend(hca.SendWR{Op: hca.Send, SGE: s, More: []hca.SGE{s, s}}), hca.ErrInvalid)
	require.ErrorIs(t, r.x.QP.PostSend(hca.SendWR{Op: hca.Send, SGE: s, More: []hca.SGE{long}}), hca.ErrTooLong)
	require.ErrorIs(t, r.x.QP.PostRecv(hca.RecvWR{SGE: s, More: []hca.SGE{s, s}}), hca.ErrInvalid)
	for i := range 2 {
		require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: uint64(i), SGE: SGE(r.md, r.dst)}))
	}
	require.ErrorIs(t, r.y.QP.PostRecv(hca.RecvWR{SGE: SGE(r.md, r.dst)}), hca.ErrQueueFull)
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 4, Op: hca.Send, SGE: s}))
	Want(t, r.x.SendCQ, 4, hca.WCSuccess)
	Want(t, r.y.RecvCQ, 0, hca.WCSuccess)
	Quiet(t, r.x.SendCQ)
	require.NoError(t, r.x.QP.Close())
	require.ErrorIs(t, r.x.QP.PostSend(hca.SendWR{Op: hca.Send, SGE: s}), hca.ErrClosed)
	require.ErrorIs(t, r.x.QP.PostRecv(hca.RecvWR{}), hca.ErrClosed)
	require.ErrorIs(t, r.x.QP.Close(), hca.ErrClosed)
}

func testConnectErrors(t *testing.T, a, b hca.Device) {
	x, y := Connect(t, a, b, hca.QPConfig{})
	require.Equal(t, hca.QPReady, x.QP.State())
	require.ErrorIs(t, x.QP.Connect(y.QP.Addr()), hca.ErrInvalid, "twice")
	z := NewEnd(t, a, hca.QPConfig{})
	require.Equal(t, hca.QPInit, z.QP.State())
	require.NoError(t, z.QP.Close())
	require.ErrorIs(t, z.QP.Connect(y.QP.Addr()), hca.ErrClosed)
}

func testQPErrors(t *testing.T, a, b hca.Device) {
	mine, err := a.NewCQ(8)
	require.NoError(t, err)
	other, err := b.NewCQ(8)
	require.NoError(t, err)
	for name, cfg := range map[string]hca.QPConfig{
		"no queue":         {},
		"peer's queue":     {SendCQ: other},
		"peer's receives":  {SendCQ: mine, RecvCQ: other},
		"negative depth":   {SendCQ: mine, MaxSend: -1},
		"too deep":         {SendCQ: mine, MaxRecv: a.Attr().MaxWR + 1},
		"too many parts":   {SendCQ: mine, MaxSGE: a.Attr().MaxSGE + 1},
		"timer backwards":  {SendCQ: mine, RNRTimer: -1},
		"no such services": {SendCQ: mine, Transport: 9},
	} {
		_, err := a.NewQP(cfg)
		require.Error(t, err, name)
	}
	require.NoError(t, mine.Close())
	require.NoError(t, other.Close())
	_, err = a.NewQP(hca.QPConfig{SendCQ: mine})
	require.ErrorIs(t, err, hca.ErrClosed)
}
