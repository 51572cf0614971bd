package hcatest

import (
	"testing"

	"example.com/holdfast/hca"
	"github.com/stretchr/testify/require"
)

var reregisterParts = []part{
	{name: "Access", needs: need{changeAccess: true}, run: func(t *testing.T, a, b hca.Device) { testReregisterAccess(t, a, b, 0) }},
	{name: "OnDemandAccess", needs: need{changeAccess: true, ops: rw}, run: func(t *testing.T, a, b hca.Device) { testReregisterAccess(t, a, b, hca.OnDemand) }},
	{name: "Atomic", needs: need{changeAccess: true}, run: testReregisterAtomic},
	{name: "Range", needs: need{changeRange: true}, run: testReregisterRange},
	{name: "Refused", needs: need{changeAccess: true}, run: testReregisterRefused},
}

// change is Reregister, with the answer given back at the end of the test. What
// counts as pinned is what is pinned afterwards, once.
func change(t *testing.T, d hca.Device, mr *hca.MR, r hca.Range, a hca.Access) *hca.MR {
	t.Helper()
	before := d.Counters().PinnedNow
	changed, err := d.(hca.Reregisterer).Reregister(mr, r, a)
	require.NoError(t, err)
	if a&hca.OnDemand == 0 {
		before += r.Pages(page).Len - mr.Range.Pages(page).Len
	}
	require.Equal(t, before, d.Counters().PinnedNow)
	require.Equal(t, r, changed.Range)
	require.Equal(t, a, changed.Access)
	t.Cleanup(func() { _ = d.Deregister(changed) }) // ErrInvalid where it was changed again
	return changed
}

// A right that is taken away is gone, and one that is given is there, for the
// peer and for this side. What stood for the registration before, does not.
func testReregisterAccess(t *testing.T, a, b hca.Device, od hca.Access) {
	far := Map(t, page)
	try := func(mr *hca.MR) hca.WCStatus {
		r := newRig(t, a, b, page, hca.QPConfig{})
		require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMAWrite, SGE: SGE(r.ms, r.src), Remote: Remote(mr, far)}))
		return Next(t, r.x.SendCQ).Status
	}
	mr := Register(t, b, far, Everything|od)
	require.Equal(t, hca.WCSuccess, try(mr))
	for range 3 {
		less := change(t, b, mr, mr.Range, hca.LocalWrite|hca.RemoteRead|od)
		require.ErrorIs(t, b.Deregister(mr), hca.ErrInvalid)
		clear(far)
		require.NotEqual(t, hca.WCSuccess, try(less))
		require.Equal(t, make([]byte, page), far)
		mr = change(t, b, less, less.Range, Everything|od)
		require.Equal(t, hca.WCSuccess, try(mr))
		require.NotEqual(t, make([]byte, page), far)
	}
	same, err := b.(hca.Reregisterer).Reregister(mr, mr.Range, mr.Access)
	require.NoError(t, err)
	require.Same(t, mr, same, "nothing to change")
	require.NoError(t, b.Deregister(mr))
}

// The right to do atomics comes and goes like the others.
func testReregisterAtomic(t *testing.T, a, b hca.Device) {
	far := Map(t, page)
	mr := Register(t, b, far, Everything)
	for i, right := range []hca.Access{0, hca.RemoteAtomic, 0} {
		mr = change(t, b, mr, mr.Range, Everything|right)
		r := newRig(t, a, b, page, hca.QPConfig{})
		require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.AtomicFetchAdd, SGE: SGE(r.ms, r.src[:8]), Remote: Remote(mr, far), CompareAdd: 1}))
		require.Equal(t, right != 0, Next(t, r.x.SendCQ).Status == hca.WCSuccess, "round %d", i)
	}
	require.EqualValues(t, 1, word(far).Load(), "once")
}

// The registration stands for other memory, and no more for the old.
func testReregisterRange(t *testing.T, a, b hca.Device) {
	old, far := Map(t, page), Map(t, 3*page)
	mr := Register(t, b, old, Everything)
	moved := change(t, b, mr, hca.RangeOf(far), Everything)
	r := newRig(t, a, b, page, hca.QPConfig{})
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMAWrite, SGE: SGE(r.ms, r.src), Remote: Remote(moved, far[page:])}))
	Want(t, r.x.SendCQ, 1, hca.WCSuccess)
	require.Equal(t, r.src, far[page:2*page])
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.RDMAWrite, SGE: SGE(r.ms, r.src), Remote: Remote(moved, old)}))
	require.NotEqual(t, hca.WCSuccess, Next(t, r.x.SendCQ).Status)
	require.Equal(t, make([]byte, page), old)
	// Memory and access at once, from reading to writing too: the pages are
	// looked up anew.
	ro := Register(t, b, old, hca.LocalRead)
	change(t, b, ro, hca.RangeOf(old), Everything)
}

// What makes no sense changes nothing.
func testReregisterRefused(t *testing.T, a, b hca.Device) {
	dev := a.(hca.Reregisterer)
	m := Map(t, page)
	r := hca.RangeOf(m)
	mr := Register(t, a, m, Everything)
	for name, refuse := range map[string]struct {
		mr  *hca.MR
		r   hca.Range
		to  hca.Access
		err error
	}{
		"nothing":                  {nil, r, Everything, hca.ErrInvalid},
		"another device's":         {Register(t, b, m, Everything), r, hca.LocalWrite, hca.ErrInvalid},
		"unknown access":           {mr, r, 1 << 30, hca.ErrInvalid},
		"remote without local":     {mr, r, hca.RemoteWrite, hca.ErrInvalid},
		"no bytes":                 {mr, hca.Range{Addr: r.Addr}, Everything, hca.ErrInvalid},
		"the whole address space":  {mr, hca.Whole, Everything, hca.ErrInvalid},
		"from pinned to on demand": {mr, r, Everything | hca.OnDemand, hca.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := dev.Reregister(refuse.mr, refuse.r, refuse.to)
			if refuse.to.Has(hca.OnDemand) && !a.Attr().ODP.Support {
				require.ErrorIs(t, err, hca.ErrNotSupported)
			} else {
				require.ErrorIs(t, err, refuse.err)
			}
			require.Nil(t, got)
		})
	}
	if !a.Attr().Rereg.Range {
		_, err := dev.Reregister(mr, hca.RangeOf(Map(t, page)), Everything)
		require.ErrorIs(t, err, hca.ErrNotSupported)
		// Pages that were pinned for reading may be anybody's.
		_, err = dev.Reregister(Register(t, a, m, hca.LocalRead), r, Everything)
		require.ErrorIs(t, err, hca.ErrAccess)
	}
	require.NoError(t, a.Deregister(mr), "it is as it was")
	_, err := dev.Reregister(mr, r, hca.LocalWrite)
	require.ErrorIs(t, err, hca.ErrInvalid, "deregistered")
}
