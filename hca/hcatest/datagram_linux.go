package hcatest

import (
	"testing"

	"example.com/holdfast/hca"
	"github.com/stretchr/testify/require"
)

var datagramParts = []part{
	{name: "Transfer", needs: need{datagrams: true}, run: testDatagrams},
	{name: "Dropped", needs: need{datagrams: true}, run: testDatagramDropped},
	{name: "Refused", needs: need{datagrams: true}, run: testDatagramRefused},
	{name: "Flush", needs: need{datagrams: true}, run: testDatagramFlush},
	{name: "NotOffered", needs: need{noDatagrams: true}, run: testNoDatagrams},
}

var datagrams = hca.QPConfig{Transport: hca.UD}

// Datagrams of all kinds of sizes arrive whole, in both directions, in
// elements, with their immediate; what is before the payload is not seen.
func testDatagrams(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, datagrams)
	back := Register(t, b, r.dst, Everything)
	for i, n := range []int{0, 1, 7, 100, 255, 256} { // 256 is the least MTU there is
		clear(r.dst)
		fill(r.src, byte(i))
		require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: 1, SGE: SGE(r.md, r.dst[:100]), More: []hca.SGE{SGE(r.md, r.dst[100:])}}))
		require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.SendWithImm, Imm: uint32(i), SGE: SGE(r.ms, r.src[:n/2]),
			More: []hca.SGE{SGE(r.ms, r.src[n/2:n])}}))
		Want(t, r.x.SendCQ, 2, hca.WCSuccess)
		wc := Want(t, r.y.RecvCQ, 1, hca.WCSuccess)
		require.Equal(t, hca.WCRecv, wc.Op)
		require.EqualValues(t, n, wc.Len)
		require.True(t, wc.HasImm)
		require.EqualValues(t, i, wc.Imm)
		require.Equal(t, r.src[:n], r.dst[:n])
		require.Equal(t, make([]byte, page-n), r.dst[n:])

		require.NoError(t, r.x.QP.PostRecv(hca.RecvWR{ID: 3, SGE: SGE(r.ms, r.src)}))
		require.NoError(t, r.y.QP.PostSend(hca.SendWR{ID: 4, Op: hca.Send, SGE: SGE(back, r.dst[:n])}))
		Want(t, r.y.SendCQ, 4, hca.WCSuccess)
		wc = Want(t, r.x.RecvCQ, 3, hca.WCSuccess)
		require.EqualValues(t, n, wc.Len)
		require.False(t, wc.HasImm)
	}
	require.EqualValues(t, 6, a.Counters().Sends)
	require.EqualValues(t, 6, b.Counters().Recvs)
}

// A datagram that meets no receive is gone, and nobody is told; nothing breaks
// by it, and a later one arrives whole.
func testDatagramDropped(t *testing.T, a, b hca.Device) {
	const n = 100
	r := newRig(t, a, b, n, datagrams)
	send := func(i int) {
		fill(r.src, byte(i))
		require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.SendWithImm, Imm: uint32(i), SGE: SGE(r.ms, r.src)}))
		Want(t, r.x.SendCQ, 1, hca.WCSuccess)
	}
	for i := range 10 {
		send(i)
	}
	require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: 2, SGE: SGE(r.md, r.dst)}))
	send(10)
	// Nothing tells when the early ones were dropped, so the one that arrives
	// may still be one of them.
	wc := Want(t, r.y.RecvCQ, 2, hca.WCSuccess)
	require.EqualValues(t, n, wc.Len)
	require.LessOrEqual(t, wc.Imm, uint32(10))
	fill(r.src, byte(wc.Imm))
	require.Equal(t, r.src, r.dst)
	Quiet(t, r.y.RecvCQ)
	require.Equal(t, hca.QPReady, r.x.QP.State())
	require.Equal(t, hca.QPReady, r.y.QP.State())
}

// Datagrams carry messages of one packet and nothing else.
func testDatagramRefused(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, 2*page, datagrams)
	for _, op := range []hca.Op{hca.RDMAWrite, hca.RDMAWriteWithImm, hca.RDMARead, hca.AtomicCmpSwap, hca.AtomicFetchAdd} {
		require.ErrorIs(t, r.x.QP.PostSend(hca.SendWR{Op: op, SGE: SGE(r.ms, r.src[:8]), Remote: Remote(r.md, r.dst)}), hca.ErrInvalid, "operation %d", op)
	}
	require.ErrorIs(t, r.x.QP.PostSend(hca.SendWR{Op: hca.Send, SGE: SGE(r.ms, r.src)}), hca.ErrTooLong, "no MTU is two pages")
	Quiet(t, r.x.SendCQ)
	require.Equal(t, hca.QPReady, r.x.QP.State(), "nothing was queued")
}

// What is posted when a queue pair is closed completes.
func testDatagramFlush(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, datagrams)
	for i := range uint64(3) {
		require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: i, SGE: SGE(r.md, r.dst)}))
	}
	require.NoError(t, r.y.QP.Close())
	for i := range uint64(3) {
		Want(t, r.y.RecvCQ, i, hca.WCWRFlushErr)
	}
	Quiet(t, r.y.RecvCQ)
}

// Who has none says so, and leaves nothing behind.
func testNoDatagrams(t *testing.T, a, _ hca.Device) {
	cq, err := a.NewCQ(1)
	require.NoError(t, err)
	qp, err := a.NewQP(hca.QPConfig{Transport: hca.UD, SendCQ: cq})
	require.ErrorIs(t, err, hca.ErrNotSupported)
	require.Nil(t, qp)
	require.NoError(t, cq.Close())
}
