package hcatest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"example.com/holdfast/hca"
	"github.com/stretchr/testify/require"
)

var transferParts = []part{
	{name: "Send", run: testSend},
	{name: "Sizes", run: testSizes},
	{name: "NoBytes", run: testNoBytes},
	{name: "Immediate", run: testImmediate},
	{name: "WriteImmediate", run: testWriteImmediate},
	{name: "Elements", run: testElements},
	{name: "Unsignaled", run: testUnsignaled},
	{name: "Order", run: testOrder},
	{name: "Loopback", run: testLoopback},
	{name: "Parallel", run: testParallel},
	{name: "Counters", run: testTransferCounters},
}

// rig is a connected pair with one pinned buffer at each end.
type rig struct {
	x, y     *End
	src, dst []byte
	ms, md   *hca.MR
}

func newRig(t *testing.T, a, b hca.Device, n int, cfg hca.QPConfig) *rig {
	t.Helper()
	r := &rig{src: Map(t, n), dst: Map(t, n)}
	r.x, r.y = Connect(t, a, b, cfg)
	r.ms, r.md = Register(t, a, r.src, Everything), Register(t, b, r.dst, Everything)
	fill(r.src, 0x5a)
	return r
}

func testSend(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, hca.QPConfig{})
	require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: 7, SGE: SGE(r.md, r.dst)}))
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 8, Op: hca.Send, SGE: SGE(r.ms, r.src[:100])}))
	wc := Want(t, r.y.RecvCQ, 7, hca.WCSuccess)
	require.Equal(t, hca.WCRecv, wc.Op)
	require.EqualValues(t, 100, wc.Len)
	require.False(t, wc.HasImm)
	require.Equal(t, r.y.QP.Addr().QPN, wc.QPN)
	wc = Want(t, r.x.SendCQ, 8, hca.WCSuccess)
	require.Equal(t, hca.WCSend, wc.Op)
	require.Equal(t, r.src[:100], r.dst[:100])
	require.Equal(t, make([]byte, page-100), r.dst[100:], "nothing more was written")
	Quiet(t, r.x.SendCQ)
	Quiet(t, r.y.RecvCQ)
}

// Every size and every crooked address arrives whole, by write and by read.
func testSizes(t *testing.T, a, b hca.Device) {
	const most = 3<<20 + 77
	r := newRig(t, a, b, most+64, hca.QPConfig{})
	for i, n := range []int{1, 63, page - 1, page, page + 1, 65535, 65536, 65537, 256 << 10, 1<<20 + 1, most} {
		src, dst := r.src[i:i+n], r.dst[3*i:3*i+n]
		clear(r.dst)
		require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMAWrite, SGE: SGE(r.ms, src), Remote: Remote(r.md, dst)}))
		Want(t, r.x.SendCQ, 1, hca.WCSuccess)
		require.True(t, string(src) == string(dst), "write of %d bytes", n)
		for _, beyond := range r.dst[3*i+n:] {
			if beyond != 0 {
				t.Fatalf("write of %d bytes wrote more", n)
			}
		}
		fill(dst, byte(n))
		require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.RDMARead, SGE: SGE(r.ms, src), Remote: Remote(r.md, dst)}))
		wc := Want(t, r.x.SendCQ, 2, hca.WCSuccess)
		require.Equal(t, hca.WCRDMARead, wc.Op)
		require.True(t, string(src) == string(dst), "read of %d bytes", n)
	}
}

func testNoBytes(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, hca.QPConfig{})
	require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: 1}))
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.Send}))
	wc := Want(t, r.y.RecvCQ, 1, hca.WCSuccess)
	require.Zero(t, wc.Len)
	Want(t, r.x.SendCQ, 2, hca.WCSuccess)
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 3, Op: hca.RDMAWrite}))
	Want(t, r.x.SendCQ, 3, hca.WCSuccess)
}

func testImmediate(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, hca.QPConfig{})
	require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: 1, SGE: SGE(r.md, r.dst)}))
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.SendWithImm, SGE: SGE(r.ms, r.src[:8]), Imm: 0xdeadbeef}))
	wc := Want(t, r.y.RecvCQ, 1, hca.WCSuccess)
	require.True(t, wc.HasImm)
	require.EqualValues(t, 0xdeadbeef, wc.Imm)
	require.EqualValues(t, 8, wc.Len)
}

// A write with immediate data consumes a receive and leaves its memory alone.
func testWriteImmediate(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, 2*page, hca.QPConfig{})
	require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: 1, SGE: SGE(r.md, r.dst[page:])}))
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.RDMAWriteWithImm, SGE: SGE(r.ms, r.src[:page]),
		Remote: Remote(r.md, r.dst), Imm: 77}))
	wc := Want(t, r.y.RecvCQ, 1, hca.WCSuccess)
	require.Equal(t, hca.WCRecvRDMAWithImm, wc.Op)
	require.True(t, wc.HasImm)
	require.EqualValues(t, 77, wc.Imm)
	require.EqualValues(t, page, wc.Len)
	require.Equal(t, hca.WCRDMAWrite, Want(t, r.x.SendCQ, 2, hca.WCSuccess).Op)
	require.Equal(t, r.src[:page], r.dst[:page])
	require.Equal(t, make([]byte, page), r.dst[page:])
}

// Lists of elements are cut differently at both ends, and empty ones are
// passed over.
func testElements(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, 2*page, hca.QPConfig{MaxSGE: 4})
	m2 := Register(t, a, r.src[page:], hca.LocalRead) // a second registration in the list
	send := hca.SendWR{ID: 1, Op: hca.Send, SGE: SGE(r.ms, r.src[:10]),
		More: []hca.SGE{{}, SGE(m2, r.src[page:page+200]), SGE(r.ms, r.src[50:53])}}
	recv := hca.RecvWR{ID: 2, SGE: SGE(r.md, r.dst[:100]), More: []hca.SGE{SGE(r.md, r.dst[1000:1001]), SGE(r.md, r.dst[2000:2500])}}
	require.NoError(t, r.y.QP.PostRecv(recv))
	recv.More[0] = hca.SGE{} // the caller's again
	require.NoError(t, r.x.QP.PostSend(send))
	require.EqualValues(t, 213, Want(t, r.y.RecvCQ, 2, hca.WCSuccess).Len)
	Want(t, r.x.SendCQ, 1, hca.WCSuccess)
	want := append(append(append([]byte(nil), r.src[:10]...), r.src[page:page+200]...), r.src[50:53]...)
	got := append(append(append([]byte(nil), r.dst[:100]...), r.dst[1000]), r.dst[2000:2112]...)
	require.Equal(t, want, got)
}

func testUnsignaled(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, hca.QPConfig{})
	for i := range 3 {
		require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: uint64(i), Op: hca.RDMAWrite, SGE: SGE(r.ms, r.src),
			Remote: Remote(r.md, r.dst), Unsignaled: i != 2}))
	}
	Want(t, r.x.SendCQ, 2, hca.WCSuccess)
	Quiet(t, r.x.SendCQ)
	require.Equal(t, r.src, r.dst)
}

// Requests complete in the order in which they were posted, and messages fill
// receives in that order.
func testOrder(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, hca.QPConfig{})
	const n = 100
	for i := range n {
		require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: uint64(i), SGE: SGE(r.md, r.dst[i:i+1])}))
	}
	for i := range n {
		require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: uint64(i), Op: hca.Send, SGE: SGE(r.ms, r.src[i:i+1])}))
	}
	for i := range n {
		Want(t, r.x.SendCQ, uint64(i), hca.WCSuccess)
		Want(t, r.y.RecvCQ, uint64(i), hca.WCSuccess)
	}
	require.Equal(t, r.src[:n], r.dst[:n])
}

// Two queue pairs of one device talk to each other.
func testLoopback(t *testing.T, a, _ hca.Device) {
	r := newRig(t, a, a, page, hca.QPConfig{})
	require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: 1, SGE: SGE(r.md, r.dst)}))
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.Send, SGE: SGE(r.ms, r.src)}))
	Want(t, r.y.RecvCQ, 1, hca.WCSuccess)
	Want(t, r.x.SendCQ, 2, hca.WCSuccess)
	require.Equal(t, r.src, r.dst)
}

// Several connections work side by side, several goroutines on each of them,
// while memory is registered and deregistered.
func testParallel(t *testing.T, a, b hca.Device) {
	const pairs, posters, rounds = 2, 2, 100
	start := time.Now()
	var wg sync.WaitGroup
	fail := make(chan string, pairs*posters+1)
	for range pairs {
		x, _ := Connect(t, a, b, hca.QPConfig{MaxSend: posters})
		var cq sync.Mutex // of who polls: completions of both posters arrive on one queue
		done := map[uint64]int{}
		for id := range uint64(posters) {
			src, dst := Map(t, 2*page), Map(t, 2*page)
			ms, md := Register(t, a, src, Everything), Register(t, b, dst, Everything)
			wg.Go(func() {
				for i := range rounds {
					fill(src, byte(i))
					err := x.QP.PostSend(hca.SendWR{ID: id, Op: hca.RDMAWrite, SGE: SGE(ms, src), Remote: Remote(md, dst)})
					if err != nil {
						fail <- err.Error()
						return
					}
					for ready := false; !ready; {
						if time.Since(start) > limit {
							fail <- "completions did not arrive"
							return
						}
						cq.Lock()
						var wc [1]hca.WC
						n, err := x.SendCQ.Poll(wc[:])
						if err != nil || n == 1 && wc[0].Status != hca.WCSuccess {
							fail <- fmt.Sprint(err, wc[0].Status)
							cq.Unlock()
							return
						}
						if n == 1 {
							done[wc[0].ID]++
						}
						ready = done[id] == i+1
						cq.Unlock()
					}
					if string(src) != string(dst) {
						fail <- fmt.Sprintf("wrong bytes in round %d of %d", i, id)
						return
					}
				}
			})
		}
	}
	m := Map(t, 16*page)
	wg.Go(func() {
		for range rounds {
			mr, err := a.Register(hca.RangeOf(m), 0)
			if err == nil {
				err = a.Deregister(mr)
			}
			if err != nil {
				fail <- err.Error()
				return
			}
		}
	})
	wg.Wait()
	close(fail)
	for f := range fail {
		t.Error(f)
	}
}

func testTransferCounters(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, hca.QPConfig{})
	require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: 1, SGE: SGE(r.md, r.dst)}))
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{Op: hca.Send, SGE: SGE(r.ms, r.src)}))
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{Op: hca.RDMAWrite, SGE: SGE(r.ms, r.src[:10]), Remote: Remote(r.md, r.dst)}))
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{Op: hca.RDMARead, SGE: SGE(r.ms, r.src[:6]), Remote: Remote(r.md, r.dst)}))
	for range 3 {
		Want(t, r.x.SendCQ, 0, hca.WCSuccess)
	}
	Want(t, r.y.RecvCQ, 1, hca.WCSuccess)
	c := a.Counters()
	require.EqualValues(t, 1, c.Sends)
	require.EqualValues(t, 1, c.Writes)
	require.EqualValues(t, 1, c.Reads)
	require.EqualValues(t, page+16, c.Bytes)
	require.Zero(t, c.Errors)
	require.EqualValues(t, 1, b.Counters().Recvs)
}
