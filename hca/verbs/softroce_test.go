//go:build linux && cgo && verbs

package verbs

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
)

// What rdma_rxe does where it does not do what the suite wants. Each test also
// checks what counts all the same: an error is an error, nothing is written
// where it must not be, and the next connection works.

func openSoftRoCE(t *testing.T) *device {
	t.Helper()
	d := open(t)
	if !d.softRoCE() {
		t.Skipf("%s is not Soft-RoCE", d.attr.Name)
	}
	return d
}

// pair is a connected pair with a pinned buffer at each end.
type pair struct {
	x, y     *hcatest.End
	src, dst *buffer
}

func newPair(t *testing.T, d *device, n int) *pair {
	t.Helper()
	p := &pair{src: newBuffer(t, d, n, everything), dst: newBuffer(t, d, n, everything)}
	p.x, p.y = hcatest.Connect(t, d, d, hca.QPConfig{})
	p.src.fill(1)
	return p
}

// works checks that a new connection transfers.
func works(t *testing.T, d *device) {
	t.Helper()
	p := newPair(t, d, 3*page)
	require.NoError(t, p.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMAWrite, SGE: p.src.sge(), Remote: p.dst.remote()}))
	hcatest.Want(t, p.x.SendCQ, 1, hca.WCSuccess)
	same(t, p.src.mem, p.dst.mem, "on a new connection")
}

// In place of OwnMemory and HoleAtSource.
func TestSoftRoCEOwnMemory(t *testing.T) {
	d := openSoftRoCE(t)
	for name, wrong := range map[string]func(t *testing.T, p *pair) hca.SGE{
		"unknown key":       func(t *testing.T, p *pair) hca.SGE { s := p.src.sge(); s.LKey ^= 0x55555; return s },
		"a byte too early":  func(t *testing.T, p *pair) hca.SGE { s := p.src.sge(); s.Addr--; return s },
		"a byte too long":   func(t *testing.T, p *pair) hca.SGE { s := p.src.sge(); s.Len++; return s },
		"outside the world": func(t *testing.T, p *pair) hca.SGE { s := p.src.sge(); s.Addr = ^uint64(3); return s },
		"a hole": func(t *testing.T, p *pair) hca.SGE {
			needODP(t, d, hca.ODPSend|hca.ODPRecv|hca.ODPWrite)
			m := hcatest.Hole(t, 3*page, page, 2*page)
			return hcatest.SGE(hcatest.Register(t, d, m, everything|hca.OnDemand), m)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, d, 3*page)
			p.dst = newBuffer(t, d, 4*page, everything) // it has room: the peer does nothing wrong
			require.NoError(t, p.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMAWrite, SGE: wrong(t, p), Remote: p.dst.remote()}))
			wc := hcatest.Next(t, p.x.SendCQ)
			require.EqualValues(t, 1, wc.ID)
			require.Contains(t, []hca.WCStatus{hca.WCWRFlushErr, hca.WCLocProtErr}, wc.Status)
			require.Equal(t, hca.WCRDMAWrite, wc.Op, "a failed completion still says what it was")
			require.Equal(t, hca.QPError, p.x.QP.State())
			works(t, d)
		})
	}
}

// In place of ReceiveMemory, ReceiveTooShort and HoleInReceive.
func TestSoftRoCEReceive(t *testing.T) {
	d := openSoftRoCE(t)
	for name, wrong := range map[string]func(t *testing.T, p *pair) hca.SGE{
		"for reading": func(t *testing.T, p *pair) hca.SGE {
			return hcatest.SGE(hcatest.Register(t, d, p.dst.mem, hca.LocalRead), p.dst.mem)
		},
		"too short": func(t *testing.T, p *pair) hca.SGE { s := p.dst.sge(); s.Len--; return s },
		"a hole": func(t *testing.T, p *pair) hca.SGE {
			needODP(t, d, hca.ODPSend|hca.ODPRecv|hca.ODPWrite)
			m := hcatest.Hole(t, 3*page, page, 2*page)
			return hcatest.SGE(hcatest.Register(t, d, m, everything|hca.OnDemand), m)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, d, 3*page)
			require.NoError(t, p.y.QP.PostRecv(hca.RecvWR{ID: 1, SGE: wrong(t, p)}))
			require.NoError(t, p.y.QP.PostRecv(hca.RecvWR{ID: 2, SGE: p.dst.sge()}))
			require.NoError(t, p.x.QP.PostSend(hca.SendWR{ID: 3, Op: hca.Send, SGE: p.src.sge()}))
			wc := hcatest.Next(t, p.y.RecvCQ)
			require.EqualValues(t, 1, wc.ID)
			require.Contains(t, []hca.WCStatus{hca.WCLocQPOpErr, hca.WCLocProtErr, hca.WCLocLenErr}, wc.Status)
			hcatest.Want(t, p.y.RecvCQ, 2, hca.WCWRFlushErr)
			wc = hcatest.Next(t, p.x.SendCQ)
			require.EqualValues(t, 3, wc.ID)
			require.NotEqual(t, hca.WCSuccess, wc.Status)
			t.Logf("the sender sees %s", wc.Status)
			require.Equal(t, hca.QPError, p.x.QP.State())
			require.Equal(t, hca.QPError, p.y.QP.State())
			works(t, d)
		})
	}
}

// In place of Flush: all that was posted completes, each once, in order.
func TestSoftRoCEFlush(t *testing.T) {
	d := openSoftRoCE(t)
	p := newPair(t, d, page)
	for i := range 3 {
		require.NoError(t, p.x.QP.PostRecv(hca.RecvWR{ID: uint64(10 + i)}))
	}
	require.NoError(t, p.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.Send, SGE: p.src.sge()})) // waits for a receive
	bad := p.src.sge()
	bad.LKey ^= 0x55555
	require.NoError(t, p.x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.RDMAWrite, SGE: bad, Remote: p.dst.remote(), Unsignaled: true}))
	for i := range 3 {
		require.NoError(t, p.x.QP.PostSend(hca.SendWR{ID: uint64(3 + i), Op: hca.Send, SGE: p.src.sge(), Unsignaled: true}))
	}
	for i := range 5 {
		wc := hcatest.Next(t, p.x.SendCQ)
		require.EqualValues(t, 1+i, wc.ID)
		require.NotEqual(t, hca.WCSuccess, wc.Status)
	}
	for i := range 3 {
		hcatest.Want(t, p.x.RecvCQ, uint64(10+i), hca.WCWRFlushErr)
	}
	// What is posted now is flushed too, at once.
	require.NoError(t, p.x.QP.PostSend(hca.SendWR{ID: 20, Op: hca.Send, SGE: p.src.sge()}))
	require.NoError(t, p.x.QP.PostRecv(hca.RecvWR{ID: 21}))
	hcatest.Want(t, p.x.SendCQ, 20, hca.WCWRFlushErr)
	hcatest.Want(t, p.x.RecvCQ, 21, hca.WCWRFlushErr)
	hcatest.Quiet(t, p.x.SendCQ)
}

// In place of Overflow: the kernel raises an event, which is counted and told
// by Poll once, and by Wait.
func TestSoftRoCEOverflow(t *testing.T) {
	d := openSoftRoCE(t)
	cq, err := d.NewCQ(2)
	require.NoError(t, err)
	x := hcatest.NewEnd(t, d, hca.QPConfig{SendCQ: cq})
	y := hcatest.NewEnd(t, d, hca.QPConfig{})
	require.NoError(t, x.QP.Connect(y.QP.Addr()))
	require.NoError(t, y.QP.Connect(x.QP.Addr()))
	src, dst := newBuffer(t, d, page, everything), newBuffer(t, d, page, everything)
	for i := range 100 {
		require.NoError(t, x.QP.PostSend(hca.SendWR{ID: uint64(i), Op: hca.RDMAWrite, SGE: src.sge(), Remote: dst.remote()}))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var wc [64]hca.WC
	got := 0
	for err == nil {
		require.NoError(t, cq.Wait(ctx), "nobody told of the completions that were lost")
		var n int
		n, err = cq.Poll(wc[:])
		got += n
	}
	require.ErrorIs(t, err, hca.ErrNoMemory)
	require.Less(t, got, 100)
	_, err = cq.Poll(wc[:])
	require.NoError(t, err, "it is told once")
	require.Equal(t, "CQ error", d.Events()[0].Name)
	require.NoError(t, x.QP.Close())
	require.NoError(t, cq.Close())
	works(t, d)
}

// In place of Atomic/Refused. Aligned atomics on on-demand memory, which stand
// in place of Atomic/OnDemand, are in acceptance_test.go.
func TestSoftRoCEAtomicRefused(t *testing.T) {
	d := openSoftRoCE(t)
	for name, access := range map[string]hca.Access{"no right": hcatest.Everything, "not aligned": everything} {
		t.Run(name, func(t *testing.T) {
			p := &pair{src: newBuffer(t, d, page, everything), dst: newBuffer(t, d, page, access)}
			p.x, p.y = hcatest.Connect(t, d, d, hca.QPConfig{})
			wr := hca.SendWR{ID: 1, Op: hca.AtomicFetchAdd, SGE: p.src.sge(), Remote: p.dst.remote(), CompareAdd: 1}
			wr.SGE.Len = 8
			if access == everything {
				wr.Remote.Addr += 4
				require.ErrorIs(t, p.x.QP.PostSend(wr), hca.ErrInvalid)
				require.Equal(t, hca.QPReady, p.x.QP.State(), "it was not queued")
				hcatest.Quiet(t, p.x.SendCQ)
			} else {
				require.NoError(t, p.x.QP.PostSend(wr))
				require.Contains(t, []hca.WCStatus{hca.WCRemAccessErr, hca.WCRetryExcErr}, hcatest.Next(t, p.x.SendCQ).Status)
			}
			same(t, make([]byte, page), p.dst.mem, "the word was changed")
			works(t, d)
		})
	}
}

// In place of StaleKey, PeerMemory, HoleAtPeer, on-demand ReadOnly, LeftOver and
// Atomic/Gone. What the peer refuses fails as a remote access error; but now
// and then the requester misses the refusal, asks again until it has no tries
// left, and says that.
func TestSoftRoCEPeerMemory(t *testing.T) {
	d := openSoftRoCE(t)
	const n = 8 * page
	onDemand := everything | hca.OnDemand
	register := func(m []byte, a hca.Access) func(t *testing.T) *buffer {
		return func(t *testing.T) *buffer { return &buffer{m, hcatest.Register(t, d, m, a)} }
	}
	fresh := func(a hca.Access) func(t *testing.T) *buffer {
		return func(t *testing.T) *buffer { return newBuffer(t, d, n, a) }
	}
	seen := map[hca.WCStatus]int{}
	for _, c := range []struct {
		name   string
		op     hca.Op
		far    func(t *testing.T) *buffer
		change func(r *hca.RemoteAddr)
	}{
		{"write with a right to read", hca.RDMAWrite, fresh(hca.LocalWrite | hca.RemoteRead), nil},
		{"read with a right to write", hca.RDMARead, fresh(hca.LocalWrite | hca.RemoteWrite), nil},
		{"no remote right", hca.RDMAWrite, fresh(hca.LocalWrite), nil},
		{"unknown key", hca.RDMAWrite, fresh(everything), func(r *hca.RemoteAddr) { r.RKey ^= 0x2aaaa }},
		{"key 0", hca.RDMARead, fresh(everything), func(r *hca.RemoteAddr) { r.RKey = 0 }},
		{"a byte too far", hca.RDMARead, fresh(everything), func(r *hca.RemoteAddr) { r.Addr++ }},
		{"a byte too early", hca.RDMAWrite, fresh(everything), func(r *hca.RemoteAddr) { r.Addr-- }},
		{"deregistered, and registered again", hca.RDMAWrite, func(t *testing.T) *buffer {
			b := newBuffer(t, d, n, everything)
			require.NoError(t, d.Deregister(b.mr))
			register(b.mem, everything)(t)
			return b
		}, nil},
		{"a hole, write", hca.RDMAWrite, register(hcatest.Hole(t, n, 5*page, 6*page), onDemand), nil},
		{"a hole, read", hca.RDMARead, register(hcatest.Hole(t, n, 5*page, 6*page), onDemand), nil},
		{"a hole, atomic", hca.AtomicCmpSwap, register(hcatest.Hole(t, n, 0, page), onDemand), nil},
		{"read-only, write", hca.RDMAWrite, register(hcatest.ReadOnly(t, n), onDemand), nil},
		{"read-only, atomic", hca.AtomicCmpSwap, register(hcatest.ReadOnly(t, n), onDemand), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if strings.Contains(c.name, "hole") || strings.Contains(c.name, "read-only") {
				needODP(t, d, hca.ODPWrite|hca.ODPRead|hca.ODPAtomic)
			}
			p := newPair(t, d, n)
			far := c.far(t)
			wr := hca.SendWR{ID: 1, Op: c.op, SGE: p.src.sge(), Remote: far.remote()}
			if c.op == hca.AtomicCmpSwap {
				wr.SGE.Len = 8
			}
			if c.change != nil {
				c.change(&wr.Remote)
			}
			require.NoError(t, p.y.QP.PostRecv(hca.RecvWR{ID: 5, SGE: p.dst.sge()}))
			require.NoError(t, p.x.QP.PostSend(wr))
			wc := hcatest.Next(t, p.x.SendCQ)
			require.EqualValues(t, 1, wc.ID)
			require.Contains(t, []hca.WCStatus{hca.WCRemAccessErr, hca.WCRetryExcErr}, wc.Status)
			seen[wc.Status]++
			if strings.Contains(c.name, "hole") { // pages before it may have been written
				works(t, d)
				return
			}
			same(t, make([]byte, n), far.mem, "something was written")
			require.Equal(t, hca.QPError, p.x.QP.State())
			hcatest.Want(t, p.y.RecvCQ, 5, hca.WCWRFlushErr) // the peer's end is in error too
			works(t, d)
		})
	}
	require.Greater(t, seen[hca.WCRemAccessErr], seen[hca.WCRetryExcErr], "%v", seen)
	t.Log(seen)
}
