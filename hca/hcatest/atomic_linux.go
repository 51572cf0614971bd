package hcatest

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"example.com/holdfast/hca"
	"github.com/stretchr/testify/require"
)

var atomicParts = []part{
	{name: "Pinned", run: func(t *testing.T, a, b hca.Device) { testAtomic(t, a, b, 0) }},
	{name: "OnDemand", needs: need{ops: hca.ODPAtomic}, run: func(t *testing.T, a, b hca.Device) { testAtomic(t, a, b, hca.OnDemand) }},
	{name: "AgainstCPU", run: testAtomicAgainstCPU},
	{name: "Refused", run: testAtomicRefused},
	{name: "Gone", needs: need{ops: hca.ODPAtomic}, run: testAtomicGone},
}

const forAtomics = hca.LocalWrite | hca.RemoteAtomic

func word(b []byte) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&b[0])) }

func testAtomic(t *testing.T, a, b hca.Device, od hca.Access) {
	x, _ := Connect(t, a, b, hca.QPConfig{})
	local, far := Map(t, page), Map(t, page)
	ml, mf := Register(t, a, local, hca.LocalWrite|od), Register(t, b, far, forAtomics|od)
	do := func(op hca.Op, compareAdd, swap uint64) uint64 {
		require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 1, Op: op, SGE: SGE(ml, local[16:24]), Remote: Remote(mf, far[8:]),
			CompareAdd: compareAdd, Swap: swap}))
		wc := Want(t, x.SendCQ, 1, hca.WCSuccess)
		require.Equal(t, hca.WCAtomic, wc.Op)
		return binary.NativeEndian.Uint64(local[16:])
	}
	require.EqualValues(t, 0, do(hca.AtomicFetchAdd, 5, 0))
	require.EqualValues(t, 5, do(hca.AtomicFetchAdd, ^uint64(0), 0))
	require.EqualValues(t, 4, word(far[8:]).Load())
	require.EqualValues(t, 4, do(hca.AtomicCmpSwap, 3, 77), "not equal: left alone")
	require.EqualValues(t, 4, do(hca.AtomicCmpSwap, 4, 77), "equal: swapped")
	require.EqualValues(t, 77, word(far[8:]).Load())
	require.Zero(t, word(far).Load())
	require.Zero(t, word(far[16:]).Load())
	require.EqualValues(t, 4, a.Counters().Atomics)
}

// Adapter and CPU add to the same word, and nothing is lost.
func testAtomicAgainstCPU(t *testing.T, a, b hca.Device) {
	const rounds = 5000
	x, _ := Connect(t, a, b, hca.QPConfig{})
	local, far := Map(t, page), Map(t, page)
	ml, mf := Register(t, a, local, hca.LocalWrite), Register(t, b, far, forAtomics)
	var cpu sync.WaitGroup
	cpu.Go(func() {
		for range rounds {
			word(far).Add(1)
		}
	})
	for range rounds {
		require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.AtomicFetchAdd, SGE: SGE(ml, local[:8]), Remote: Remote(mf, far), CompareAdd: 1 << 32}))
		Want(t, x.SendCQ, 1, hca.WCSuccess)
	}
	cpu.Wait()
	require.EqualValues(t, rounds<<32|rounds, word(far).Load())
}

func testAtomicRefused(t *testing.T, a, b hca.Device) {
	for _, w := range []struct {
		name   string
		access hca.Access
		off    int
		local  hca.Access
		status hca.WCStatus
	}{
		{"no right", Everything, 0, hca.LocalWrite, hca.WCRemAccessErr},
		{"not aligned", forAtomics, 4, hca.LocalWrite, hca.WCRemInvReqErr},
		{"own memory for reading", forAtomics, 0, hca.LocalRead, hca.WCLocProtErr},
	} {
		x, _ := Connect(t, a, b, hca.QPConfig{})
		local, far := Map(t, page), Map(t, page)
		ml, mf := Register(t, a, local, w.local), Register(t, b, far, w.access)
		s := hca.SendWR{ID: 1, Op: hca.AtomicFetchAdd, SGE: SGE(ml, local[:8]), Remote: Remote(mf, far[w.off:]), CompareAdd: 1}
		short := s
		short.SGE.Len = 4
		require.ErrorIs(t, x.QP.PostSend(short), hca.ErrInvalid)
		require.NoError(t, x.QP.PostSend(s))
		wc := Next(t, x.SendCQ)
		require.Equal(t, w.status.String(), wc.Status.String(), w.name)
		require.Equal(t, make([]byte, page), far, w.name)
		wantError(t, x)
	}
}

// Memory that is not there, or not for writing, is an error and no crash.
func testAtomicGone(t *testing.T, a, b hca.Device) {
	hole, ro := Hole(t, 2*page, page, 2*page), ReadOnly(t, page)
	for _, far := range [][]byte{hole[page:], ro} {
		x, _ := Connect(t, a, b, hca.QPConfig{})
		local := Map(t, page)
		ml, mf := Register(t, a, local, hca.LocalWrite), Register(t, b, far, forAtomics|hca.OnDemand)
		require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.AtomicCmpSwap, SGE: SGE(ml, local[:8]), Remote: Remote(mf, far)}))
		Want(t, x.SendCQ, 1, hca.WCRemAccessErr)
		wantError(t, x)
	}
}
