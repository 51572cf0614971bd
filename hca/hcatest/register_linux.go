package hcatest

import (
	"testing"

	"example.com/holdfast/hca"
	"github.com/stretchr/testify/require"
)

const page = 4096

var registerParts = []part{
	{name: "Keys", run: testKeys},
	{name: "Errors", run: testRegisterErrors},
	{name: "ReadOnly", needs: need{writingPins: true}, run: testReadOnlyRefused},
	{name: "ReadOnlyForReading", needs: need{ordinaryPins: true}, run: testReadOnlyForReading},
	{name: "Deregister", run: testDeregister},
	{name: "StaleKey", run: testStaleKey},
	{name: "StalePages", needs: need{stale: true}, run: testStalePages},
	{name: "Counters", run: testRegisterCounters},
}

// Every registration has keys of its own, equal ranges too, and covers what
// was asked for.
func testKeys(t *testing.T, a, _ hca.Device) {
	m := Map(t, 64*page)
	seen := map[uint32]bool{}
	for i := range 64 {
		r := hca.RangeOf(m[(i/2)*page+i : (i/2+1)*page])
		mr, err := a.Register(r, Everything)
		require.NoError(t, err)
		defer func() { require.NoError(t, a.Deregister(mr)) }()
		require.True(t, mr.Range.Contains(r))
		require.Equal(t, Everything, mr.Access)
		require.False(t, seen[mr.LKey], "key %#x twice", mr.LKey)
		seen[mr.LKey] = true
	}
}

func testRegisterErrors(t *testing.T, a, _ hca.Device) {
	m := Map(t, 4*page)
	whole := hca.RangeOf(m)
	hole := hca.RangeOf(Hole(t, 4*page, page, 2*page))
	for _, c := range []struct {
		name   string
		r      hca.Range
		access hca.Access
		want   error
	}{
		{"no bytes", hca.Range{Addr: whole.Addr}, 0, hca.ErrInvalid},
		{"past the end", hca.Range{Addr: ^uint64(0) - 10, Len: 100}, 0, hca.ErrInvalid},
		{"remote without local write", whole, hca.RemoteWrite, hca.ErrInvalid},
		{"unknown access", whole, 1 << 20, hca.ErrInvalid},
		{"the whole space pinned", hca.Whole, hca.LocalWrite, hca.ErrInvalid},
		{"too long", hca.Range{Addr: whole.Addr, Len: a.Attr().MaxMRSize + 1}, 0, hca.ErrTooLong},
		{"not mapped", hca.Range{Addr: hole.Addr + page, Len: page}, hca.LocalWrite, hca.ErrBadAddress},
		{"a hole in it", hole, hca.LocalWrite, hca.ErrBadAddress},
	} {
		mr, err := a.Register(c.r, c.access)
		require.ErrorIs(t, err, c.want, c.name)
		require.Nil(t, mr, c.name)
		var oe *hca.OpError
		require.ErrorAs(t, err, &oe, c.name)
		require.Equal(t, a.Attr().Name, oe.Device, c.name)
	}
	require.Zero(t, a.Counters().PinnedNow)
	mr, err := a.Register(whole, Everything) // errors leave it working
	require.NoError(t, err)
	require.NoError(t, a.Deregister(mr))
}

// Memory that cannot be written is refused with words that help, and works on
// demand.
func testReadOnlyRefused(t *testing.T, a, _ hca.Device) {
	m := ReadOnly(t, 2*page)
	_, err := a.Register(hca.RangeOf(m), hca.LocalRead)
	require.ErrorIs(t, err, hca.ErrBadAddress)
	require.ErrorContains(t, err, "read-only")
	require.ErrorContains(t, err, "on-demand")
	if a.Attr().ODP.Support {
		mr, err := a.Register(hca.RangeOf(m), hca.OnDemand)
		require.NoError(t, err)
		require.NoError(t, a.Deregister(mr))
	}
}

func testReadOnlyForReading(t *testing.T, a, _ hca.Device) {
	m := ReadOnly(t, 2*page)
	_, err := a.Register(hca.RangeOf(m), hca.LocalWrite)
	require.ErrorIs(t, err, hca.ErrBadAddress)
	mr, err := a.Register(hca.RangeOf(m), hca.LocalRead)
	require.NoError(t, err)
	require.NoError(t, a.Deregister(mr))
}

func testDeregister(t *testing.T, a, b hca.Device) {
	m := Map(t, page)
	mr, err := a.Register(hca.RangeOf(m), 0)
	require.NoError(t, err)
	require.ErrorIs(t, b.Deregister(mr), hca.ErrInvalid, "of another device")
	require.NoError(t, a.Deregister(mr))
	require.ErrorIs(t, a.Deregister(mr), hca.ErrInvalid, "twice")
	require.ErrorIs(t, a.Deregister(nil), hca.ErrInvalid)
	require.ErrorIs(t, a.Deregister(&hca.MR{LKey: mr.LKey}), hca.ErrInvalid, "made up")
}

// A key is dead with its registration, also when the same memory was
// registered again since.
func testStaleKey(t *testing.T, a, b hca.Device) {
	for _, again := range []bool{false, true} {
		x, y := Connect(t, a, b, hca.QPConfig{})
		src, dst := Map(t, page), Map(t, page)
		ms := Register(t, a, src, Everything)
		old := Register(t, b, dst, Everything)
		require.NoError(t, b.Deregister(old))
		if again {
			Register(t, b, dst, Everything)
		}
		fill(src, 1)
		require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMAWrite, SGE: SGE(ms, src), Remote: Remote(old, dst)}))
		Want(t, x.SendCQ, 1, hca.WCRemAccessErr)
		require.Equal(t, make([]byte, page), dst)
		_ = y
	}
}

// A pinned key goes on using the pages it pinned: it reads old bytes and its
// writes are lost.
func testStalePages(t *testing.T, a, b hca.Device) {
	x, _ := Connect(t, a, b, hca.QPConfig{})
	local, far := Map(t, page), Map(t, page)
	ml, mf := Register(t, a, local, Everything), Register(t, b, far, Everything)
	fill(far, 1)
	old := append([]byte(nil), far...)
	Remap(t, far)
	fill(far, 2)
	now := append([]byte(nil), far...)

	require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMARead, SGE: SGE(ml, local), Remote: Remote(mf, far)}))
	Want(t, x.SendCQ, 1, hca.WCSuccess)
	require.Equal(t, old, local, "the adapter reads what was there before")

	fill(local, 3)
	require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.RDMAWrite, SGE: SGE(ml, local), Remote: Remote(mf, far)}))
	Want(t, x.SendCQ, 2, hca.WCSuccess)
	require.Equal(t, now, far, "what the adapter wrote is not seen")
}

func testRegisterCounters(t *testing.T, a, _ hca.Device) {
	m := Map(t, 4*page)
	before := a.Counters()
	mr, err := a.Register(hca.RangeOf(m[10:page+10]), 0) // two pages
	require.NoError(t, err)
	require.Equal(t, before.Registrations+1, a.Counters().Registrations)
	require.Equal(t, before.PinnedNow+2*page, a.Counters().PinnedNow)
	require.NoError(t, a.Deregister(mr))
	require.Equal(t, before.Deregistrations+1, a.Counters().Deregistrations)
	require.Equal(t, before.PinnedNow, a.Counters().PinnedNow)
}
