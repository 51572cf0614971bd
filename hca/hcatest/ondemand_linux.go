package hcatest

import (
	"testing"

	"example.com/holdfast/hca"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const rw = hca.ODPWrite | hca.ODPRead

var onDemandParts = []part{
	{name: "Traffic", needs: need{ops: hca.ODPSend | hca.ODPRecv | rw}, run: testOnDemandTraffic},
	{name: "Mixed", needs: need{ops: rw}, run: testMixed},
	{name: "Follows", needs: need{ops: rw}, run: testFollows},
	{name: "NothingPinned", needs: need{ops: rw}, run: testNothingPinned},
	{name: "Unmapped", needs: need{ops: rw}, run: testUnmappedRegisters},
	{name: "Whole", needs: need{ops: rw, implicit: true}, run: testWhole},
	{name: "HoleAtSource", needs: need{ops: rw}, run: testHoleAtSource},
	{name: "HoleAtPeer", needs: need{ops: rw}, run: testHoleAtPeer},
	{name: "HoleInReceive", needs: need{ops: hca.ODPRecv}, run: testHoleInReceive},
	{name: "ReadOnly", needs: need{ops: rw}, run: testOnDemandReadOnly},
	{name: "LeftOver", needs: need{ops: rw}, run: testLeftOver},
	{name: "Advise", needs: need{ops: rw, prefetch: true}, run: testAdvise},
}

// Pages that were thrown away before every message are faulted in again, also
// those that a receiver touches for the first time (C41).
func testOnDemandTraffic(t *testing.T, a, b hca.Device) {
	x, y := Connect(t, a, b, hca.QPConfig{RNRRetry: 7})
	const n = 16 * page
	src, dst := Map(t, n), Map(t, n)
	ms, md := Register(t, a, src, Everything|hca.OnDemand), Register(t, b, dst, Everything|hca.OnDemand)
	for i := range 20 {
		require.NoError(t, unix.Madvise(src, unix.MADV_DONTNEED))
		require.NoError(t, unix.Madvise(dst, unix.MADV_DONTNEED))
		fill(src[:n/2], byte(i)) // the other half is faulted in by the adapter
		require.NoError(t, y.QP.PostRecv(hca.RecvWR{ID: 1, SGE: SGE(md, dst)}))
		require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.Send, SGE: SGE(ms, src)}))
		Want(t, x.SendCQ, 2, hca.WCSuccess)
		Want(t, y.RecvCQ, 1, hca.WCSuccess)
		require.Equal(t, src, dst)
		require.NoError(t, unix.Madvise(src, unix.MADV_DONTNEED))
		require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 3, Op: hca.RDMARead, SGE: SGE(ms, src), Remote: Remote(md, dst)}))
		Want(t, x.SendCQ, 3, hca.WCSuccess)
		require.Equal(t, dst, src)
	}
}

// One request, one element pinned and one not.
func testMixed(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, 2*page, hca.QPConfig{})
	od := Register(t, a, r.src, Everything|hca.OnDemand)
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMAWrite, SGE: SGE(r.ms, r.src[:page]),
		More: []hca.SGE{SGE(od, r.src[page:])}, Remote: Remote(r.md, r.dst)}))
	Want(t, r.x.SendCQ, 1, hca.WCSuccess)
	require.Equal(t, r.src, r.dst)
}

// An on-demand key follows the address space where a pinned one goes stale.
func testFollows(t *testing.T, a, b hca.Device) {
	x, _ := Connect(t, a, b, hca.QPConfig{})
	local, far := Map(t, page), Map(t, page)
	ml, mf := Register(t, a, local, Everything), Register(t, b, far, Everything|hca.OnDemand)
	for i := range 10 {
		Remap(t, far)
		fill(far, byte(i))
		require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMARead, SGE: SGE(ml, local), Remote: Remote(mf, far)}))
		Want(t, x.SendCQ, 1, hca.WCSuccess)
		require.Equal(t, far, local)
		fill(local, byte(i+100))
		require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.RDMAWrite, SGE: SGE(ml, local), Remote: Remote(mf, far)}))
		Want(t, x.SendCQ, 2, hca.WCSuccess)
		require.Equal(t, local, far)
	}
}

func testNothingPinned(t *testing.T, a, _ hca.Device) {
	Register(t, a, Map(t, 64*page), Everything|hca.OnDemand)
	require.Zero(t, a.Counters().PinnedNow)
}

// Memory need not be there yet when it is registered.
func testUnmappedRegisters(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, hca.QPConfig{})
	far := Map(t, page)
	require.NoError(t, unix.Mprotect(far, unix.PROT_NONE))
	mf := Register(t, b, far, Everything|hca.OnDemand)
	Remap(t, far)
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMAWrite, SGE: SGE(r.ms, r.src), Remote: Remote(mf, far)}))
	Want(t, r.x.SendCQ, 1, hca.WCSuccess)
	require.Equal(t, r.src, far)
}

// One registration stands for all memory, there already or not.
func testWhole(t *testing.T, a, b hca.Device) {
	x, _ := Connect(t, a, b, hca.QPConfig{})
	ma, err := a.Register(hca.Whole, Everything|hca.OnDemand)
	require.NoError(t, err)
	defer func() { require.NoError(t, a.Deregister(ma)) }()
	mb, err := b.Register(hca.Whole, Everything|hca.OnDemand)
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Deregister(mb)) }()
	for i := range 3 {
		src, dst := Map(t, 3*page), Map(t, 3*page)
		fill(src, byte(i))
		require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMAWrite, SGE: SGE(ma, src), Remote: Remote(mb, dst)}))
		Want(t, x.SendCQ, 1, hca.WCSuccess)
		require.Equal(t, src, dst)
	}
}

// A fault that cannot be resolved is a local error for own memory ...
func testHoleAtSource(t *testing.T, a, b hca.Device) {
	for _, op := range []hca.Op{hca.RDMAWrite, hca.RDMARead} {
		r := newRig(t, a, b, 64*page, hca.QPConfig{})
		hole := Hole(t, 64*page, 20*page, 21*page)
		mh := Register(t, a, hole, Everything|hca.OnDemand)
		require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 1, Op: op, SGE: SGE(mh, hole), Remote: Remote(r.md, r.dst)}))
		Want(t, r.x.SendCQ, 1, hca.WCLocProtErr)
		wantError(t, r.x)
		require.Equal(t, hca.QPReady, r.y.QP.State())
	}
}

// ... and a remote access error for the peer's; another connection through the
// same registration is not touched by it.
func testHoleAtPeer(t *testing.T, a, b hca.Device) {
	for _, op := range []hca.Op{hca.RDMAWrite, hca.RDMARead} {
		r := newRig(t, a, b, 64*page, hca.QPConfig{})
		hole := Hole(t, 64*page, 20*page, 21*page)
		mh := Register(t, b, hole, Everything|hca.OnDemand)
		require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 1, Op: op, SGE: SGE(r.ms, r.src), Remote: Remote(mh, hole)}))
		Want(t, r.x.SendCQ, 1, hca.WCRemAccessErr)
		wantError(t, r.x)
		r2 := newRig(t, a, b, page, hca.QPConfig{})
		require.NoError(t, r2.x.QP.PostSend(hca.SendWR{ID: 1, Op: op, SGE: SGE(r2.ms, r2.src), Remote: Remote(mh, hole)}))
		Want(t, r2.x.SendCQ, 1, hca.WCSuccess)
	}
}

func testHoleInReceive(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, 64*page, hca.QPConfig{})
	hole := Hole(t, 64*page, 20*page, 21*page)
	mh := Register(t, b, hole, Everything|hca.OnDemand)
	require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: 1, SGE: SGE(mh, hole)}))
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.Send, SGE: SGE(r.ms, r.src)}))
	Want(t, r.y.RecvCQ, 1, hca.WCLocProtErr)
	Want(t, r.x.SendCQ, 2, hca.WCRemOpErr)
}

// Read-only memory can be sent from and not received into.
func testOnDemandReadOnly(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, hca.QPConfig{})
	ro := ReadOnly(t, page)
	mr := Register(t, a, ro, hca.OnDemand)
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMAWrite, SGE: SGE(mr, ro), Remote: Remote(r.md, r.dst)}))
	Want(t, r.x.SendCQ, 1, hca.WCSuccess)
	require.Equal(t, ro, r.dst)
	mw := Register(t, b, ro, Everything|hca.OnDemand) // allowed, as memory can change; the write is not
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.RDMAWrite, SGE: SGE(r.ms, r.src), Remote: Remote(mw, ro)}))
	Want(t, r.x.SendCQ, 2, hca.WCRemAccessErr)
}

// What a transfer that failed half way left on the wire never arrives in the
// next one.
func testLeftOver(t *testing.T, a, b hca.Device) {
	for _, n := range []int{1, page, 16 * page, 50 * page} {
		bad, good := newRig(t, a, b, 64*page, hca.QPConfig{}), newRig(t, a, b, n, hca.QPConfig{})
		far := Hole(t, 64*page, 5*page, 6*page)
		mf := Register(t, b, far, Everything|hca.OnDemand)
		fill(bad.src, 0xee)
		require.NoError(t, bad.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMAWrite, SGE: SGE(bad.ms, bad.src), Remote: Remote(mf, far)}))
		Want(t, bad.x.SendCQ, 1, hca.WCRemAccessErr)
		fill(good.src, 0x11)
		require.NoError(t, good.x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.RDMAWrite, SGE: SGE(good.ms, good.src), Remote: Remote(good.md, good.dst)}))
		Want(t, good.x.SendCQ, 2, hca.WCSuccess)
		require.True(t, string(good.src) == string(good.dst), "%d bytes after a transfer that failed", n)
	}
}

func testAdvise(t *testing.T, a, _ hca.Device) {
	m := Map(t, 16*page)
	mr := Register(t, a, m[100:8*page+1], Everything|hca.OnDemand) // its last page by one byte
	ro := Register(t, a, m, hca.OnDemand)
	resident := func() (pages []int) {
		vec := make([]byte, 16)
		require.NoError(t, mincore(m, vec))
		for i, v := range vec {
			if v&1 != 0 {
				pages = append(pages, i)
			}
		}
		return pages
	}
	require.NoError(t, a.Advise(hca.PrefetchNoFault, []hca.SGE{SGE(mr, m[100:8*page+1])}))
	require.Empty(t, resident(), "no fault means none")
	require.NoError(t, a.Advise(hca.PrefetchWrite, []hca.SGE{SGE(mr, m[2*page+5:4*page]), SGE(mr, m[8*page:8*page+1]), {}}))
	require.Equal(t, []int{2, 3, 8}, resident(), "these pages and no others")
	require.EqualValues(t, 2, a.Counters().Prefetches)
	require.EqualValues(t, 9+3, a.Counters().PrefetchPages)
	require.NoError(t, a.Advise(hca.Prefetch, []hca.SGE{SGE(mr, m[page:2*page])}))

	require.ErrorIs(t, a.Advise(hca.Prefetch, []hca.SGE{SGE(mr, m[100:8*page+2])}), hca.ErrInvalid, "a byte too long")
	bad := SGE(mr, m[page:])
	bad.LKey ^= 0x55555
	require.ErrorIs(t, a.Advise(hca.Prefetch, []hca.SGE{bad}), hca.ErrInvalid, "no such key")
	require.ErrorIs(t, a.Advise(9, nil), hca.ErrInvalid)
	require.ErrorIs(t, a.Advise(hca.PrefetchWrite, []hca.SGE{SGE(ro, m)}), hca.ErrAccess)
	hole := Hole(t, 4*page, page, 2*page)
	mh := Register(t, a, hole, Everything|hca.OnDemand)
	for _, advice := range []hca.Advice{hca.Prefetch, hca.PrefetchWrite} {
		require.ErrorIs(t, a.Advise(advice, []hca.SGE{SGE(mh, hole)}), hca.ErrBadAddress, "advice %d", advice)
	}
	// What is not to be faulted need not be looked at: the kernel's own RDMA
	// code answers success.
	if err := a.Advise(hca.PrefetchNoFault, []hca.SGE{SGE(mh, hole)}); err != nil {
		require.ErrorIs(t, err, hca.ErrBadAddress)
	}
	prot := ReadOnly(t, page)
	mp := Register(t, a, prot, Everything|hca.OnDemand)
	require.ErrorIs(t, a.Advise(hca.PrefetchWrite, []hca.SGE{SGE(mp, prot)}), hca.ErrAccess)
}
