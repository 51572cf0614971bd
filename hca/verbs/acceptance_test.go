//go:build linux && cgo && verbs

package verbs

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
)

// The cases that rdma-core's own tests of on-demand paging go through
// (tests/test_odp.py), with its rules: the pages of both buffers are thrown
// away before every iteration, so that every access of the adapter faults, and
// every byte is checked.

const iterations = 100

// everything is all that a registration can allow.
const everything = hcatest.Everything | hca.RemoteAtomic

// odp is a pair of connected queue pairs with an on-demand buffer at each end.
type odp struct {
	d        *device
	x, y     *hcatest.End
	src, dst *buffer
}

func newODP(t *testing.T, ops hca.ODPOps, n int) *odp {
	t.Helper()
	d := open(t)
	needODP(t, d, ops)
	o := &odp{d: d, src: newBuffer(t, d, n, everything|hca.OnDemand), dst: newBuffer(t, d, n, everything|hca.OnDemand)}
	o.x, o.y = hcatest.Connect(t, d, d, hca.QPConfig{})
	return o
}

// round throws the pages away and writes the pattern: into src for operations
// that take from there, and into dst for reading.
func (o *odp) round(t *testing.T, i int, from *buffer) {
	t.Helper()
	o.src.drop(t)
	o.dst.drop(t)
	from.fill(i)
}

func (o *odp) send(t *testing.T, wr hca.SendWR) {
	t.Helper()
	require.NoError(t, o.x.QP.PostSend(wr))
	hcatest.Want(t, o.x.SendCQ, wr.ID, hca.WCSuccess)
}

func TestODPTraffic(t *testing.T) {
	o := newODP(t, hca.ODPSend|hca.ODPRecv, 3*page)
	for i := range iterations {
		o.round(t, i, o.src)
		o.message(t, i)
	}
}

// message sends src into dst.
func (o *odp) message(t *testing.T, i int) {
	t.Helper()
	require.NoError(t, o.y.QP.PostRecv(hca.RecvWR{ID: uint64(i), SGE: o.dst.sge()}))
	o.send(t, hca.SendWR{ID: uint64(i), Op: hca.Send, SGE: o.src.sge()})
	wc := hcatest.Want(t, o.y.RecvCQ, uint64(i), hca.WCSuccess)
	require.EqualValues(t, len(o.src.mem), wc.Len)
	same(t, o.src.mem, o.dst.mem, "round %d", i)
}

// One request gathers from an on-demand and from a pinned registration.
func TestODPMixed(t *testing.T) {
	o := newODP(t, hca.ODPSend|hca.ODPRecv, 2*page)
	pinned := newBuffer(t, o.d, page, everything)
	dst := newBuffer(t, o.d, 3*page, everything|hca.OnDemand)
	for i := range iterations {
		o.round(t, i, o.src)
		dst.drop(t)
		pinned.fill(i + 1)
		require.NoError(t, o.y.QP.PostRecv(hca.RecvWR{ID: uint64(i), SGE: dst.sge()}))
		o.send(t, hca.SendWR{ID: uint64(i), Op: hca.Send, SGE: o.src.sge(), More: []hca.SGE{pinned.sge()}})
		hcatest.Want(t, o.y.RecvCQ, uint64(i), hca.WCSuccess)
		same(t, o.src.mem, dst.mem[:2*page], "on-demand part, round %d", i)
		same(t, pinned.mem, dst.mem[2*page:], "pinned part, round %d", i)
	}
}

func TestODPWrite(t *testing.T) {
	o := newODP(t, hca.ODPWrite, 3*page)
	for i := range iterations {
		o.round(t, i, o.src)
		o.send(t, hca.SendWR{ID: uint64(i), Op: hca.RDMAWrite, SGE: o.src.sge(), Remote: o.dst.remote()})
		same(t, o.src.mem, o.dst.mem, "round %d", i)
	}
}

func TestODPRead(t *testing.T) {
	o := newODP(t, hca.ODPRead, 3*page)
	for i := range iterations {
		o.round(t, i, o.dst)
		o.send(t, hca.SendWR{ID: uint64(i), Op: hca.RDMARead, SGE: o.src.sge(), Remote: o.dst.remote()})
		same(t, o.dst.mem, o.src.mem, "round %d", i)
	}
}

func TestODPAtomics(t *testing.T) {
	o := newODP(t, hca.ODPAtomic, 8)
	word := binary.NativeEndian
	for i := range uint64(iterations) {
		o.src.drop(t)
		o.dst.drop(t)
		word.PutUint64(o.dst.mem, i)
		o.send(t, hca.SendWR{ID: 1, Op: hca.AtomicCmpSwap, SGE: o.src.sge(), Remote: o.dst.remote(), CompareAdd: i, Swap: i + 1000})
		require.Equal(t, i, word.Uint64(o.src.mem), "the old value comes back")
		require.Equal(t, i+1000, word.Uint64(o.dst.mem))

		o.src.drop(t)
		o.send(t, hca.SendWR{ID: 2, Op: hca.AtomicCmpSwap, SGE: o.src.sge(), Remote: o.dst.remote(), CompareAdd: i, Swap: 7})
		require.Equal(t, i+1000, word.Uint64(o.src.mem))
		require.Equal(t, i+1000, word.Uint64(o.dst.mem), "unequal: it stays")

		o.src.drop(t)
		o.dst.drop(t)
		o.send(t, hca.SendWR{ID: 3, Op: hca.AtomicFetchAdd, SGE: o.src.sge(), Remote: o.dst.remote(), CompareAdd: i})
		require.Zero(t, word.Uint64(o.src.mem), "the page was thrown away")
		require.Equal(t, i, word.Uint64(o.dst.mem))
	}
}

// Datagrams: sent from an on-demand registration, received into a pinned one,
// for not every adapter can fault on a datagram's receive.
func TestODPDatagram(t *testing.T) {
	d := open(t)
	if !d.attr.ODP.UD.Has(hca.ODPSend) {
		t.Skipf("%s has no on-demand paging for datagrams", d.attr.Name)
	}
	x, y := hcatest.Connect(t, d, d, hca.QPConfig{Transport: hca.UD})
	src, dst := newBuffer(t, d, 1000, everything|hca.OnDemand), newBuffer(t, d, page, everything)
	for i := range iterations {
		src.drop(t)
		src.fill(i)
		require.NoError(t, y.QP.PostRecv(hca.RecvWR{ID: uint64(i), SGE: dst.sge()}))
		require.NoError(t, x.QP.PostSend(hca.SendWR{ID: uint64(i), Op: hca.SendWithImm, Imm: uint32(i), SGE: src.sge()}))
		hcatest.Want(t, x.SendCQ, uint64(i), hca.WCSuccess)
		wc := hcatest.Want(t, y.RecvCQ, uint64(i), hca.WCSuccess)
		require.EqualValues(t, len(src.mem), wc.Len, "the header is not counted")
		require.True(t, wc.HasImm)
		require.EqualValues(t, i, wc.Imm)
		same(t, src.mem, dst.mem, "round %d", i)
	}
	require.ErrorIs(t, x.QP.PostSend(hca.SendWR{Op: hca.RDMAWrite, SGE: src.sge()}), hca.ErrInvalid)
	long := newBuffer(t, d, 2*page, everything)
	require.ErrorIs(t, x.QP.PostSend(hca.SendWR{Op: hca.Send, SGE: long.sge()}), hca.ErrTooLong)
}

// Traffic after a prefetch of every kind, synchronous and posted.
func TestODPPrefetch(t *testing.T) {
	for name, advice := range map[string]hca.Advice{"Read": hca.Prefetch, "Write": hca.PrefetchWrite, "NoFault": hca.PrefetchNoFault} {
		for _, posted := range []bool{false, true} {
			kind := map[bool]string{false: "Sync", true: "Posted"}[posted]
			t.Run(name+kind, func(t *testing.T) {
				o := newODP(t, hca.ODPSend|hca.ODPRecv, 3*page)
				needPrefetch(t, o.d)
				cq, err := o.d.NewCQ(1)
				require.NoError(t, err)
				sgl := []hca.SGE{o.src.sge(), o.dst.sge()}
				for i := range iterations {
					o.src.drop(t)
					o.dst.drop(t)
					if posted {
						require.NoError(t, o.d.PostAdvise(cq, uint64(i), advice, sgl))
						wc := hcatest.Want(t, cq, uint64(i), hca.WCSuccess)
						require.NoError(t, wc.Err)
						require.Equal(t, hca.WCAdvise, wc.Op)
					} else {
						require.NoError(t, o.d.Advise(advice, sgl))
					}
					o.src.fill(i)
					o.message(t, i)
				}
				require.EqualValues(t, iterations, o.d.Counters().Prefetches)
				require.EqualValues(t, 6*iterations, o.d.Counters().PrefetchPages)
			})
		}
	}
}

// Registering the whole address space is refused, cleanly, where the adapter
// does not offer it, and works where it does.
func TestODPImplicit(t *testing.T) {
	d := open(t)
	mr, err := d.Register(hca.Whole, hca.LocalWrite|hca.OnDemand)
	if d.attr.ODP.Implicit {
		require.NoError(t, err)
		require.NoError(t, d.Deregister(mr))
		return
	}
	require.ErrorIs(t, err, hca.ErrNotSupported)
	require.Nil(t, mr)
	// Whatever the kernel itself says to it, it is one of the ways to say no.
	d.attr.ODP.Implicit = true
	_, err = d.Register(hca.Whole, hca.LocalWrite|hca.OnDemand)
	d.attr.ODP.Implicit = false
	require.True(t, refusal(err), "%v", err)
	t.Log(err)
}
