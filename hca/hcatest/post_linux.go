package hcatest

import (
	"testing"

	"example.com/holdfast/hca"
	"github.com/stretchr/testify/require"
)

var postParts = []part{
	{name: "Register", run: testPostRegister},
	{name: "RegisterErrors", run: testPostRegisterErrors},
	{name: "Advise", needs: need{prefetch: true}, run: testPostAdvise},
	{name: "AdviseThenDeregister", needs: need{prefetch: true}, run: testAdviseThenDeregister},
}

func testPostRegister(t *testing.T, a, _ hca.Device) {
	const n = 32
	cq, err := a.NewCQ(n)
	require.NoError(t, err)
	m := Map(t, n*page)
	for i := range n {
		require.NoError(t, a.PostRegister(cq, uint64(i), hca.RangeOf(m[i*page:(i+1)*page]), Everything))
	}
	seen := map[uint64]bool{}
	for range n {
		wc := Next(t, cq)
		require.Equal(t, hca.WCRegister, wc.Op)
		require.Equal(t, hca.WCSuccess, wc.Status)
		require.NoError(t, wc.Err)
		require.False(t, seen[wc.ID])
		seen[wc.ID] = true
		require.Equal(t, hca.RangeOf(m[wc.ID*page:(wc.ID+1)*page]), wc.MR.Range)
		require.NoError(t, a.Deregister(wc.MR))
	}
	require.NoError(t, cq.Close())
}

func testPostRegisterErrors(t *testing.T, a, b hca.Device) {
	cq, err := a.NewCQ(8)
	require.NoError(t, err)
	other, err := b.NewCQ(8)
	require.NoError(t, err)
	hole := hca.RangeOf(Hole(t, 2*page, page, 2*page))
	require.NoError(t, a.PostRegister(cq, 5, hole, Everything))
	wc := Next(t, cq)
	require.Equal(t, hca.WCRegister, wc.Op)
	require.EqualValues(t, 5, wc.ID)
	require.NotEqual(t, hca.WCSuccess, wc.Status)
	require.ErrorIs(t, wc.Err, hca.ErrBadAddress)
	require.Nil(t, wc.MR)
	require.ErrorIs(t, a.PostRegister(nil, 5, hole, Everything), hca.ErrInvalid)
	require.ErrorIs(t, a.PostRegister(other, 5, hole, Everything), hca.ErrInvalid)
	require.NoError(t, cq.Close())
	require.ErrorIs(t, a.PostRegister(cq, 5, hole, Everything), hca.ErrClosed)
	require.NoError(t, other.Close())
}

func testPostAdvise(t *testing.T, a, _ hca.Device) {
	cq, err := a.NewCQ(8)
	require.NoError(t, err)
	m := Map(t, 8*page)
	mr := Register(t, a, m, Everything|hca.OnDemand)
	require.NoError(t, a.PostAdvise(cq, 3, hca.PrefetchWrite, []hca.SGE{SGE(mr, m)}))
	wc := Next(t, cq)
	require.Equal(t, hca.WCAdvise, wc.Op)
	require.EqualValues(t, 3, wc.ID)
	require.NoError(t, wc.Err)
	vec := make([]byte, 8)
	require.NoError(t, mincore(m, vec))
	for _, v := range vec {
		require.EqualValues(t, 1, v&1)
	}
	// Keys are checked at once, memory later.
	bad := SGE(mr, m)
	bad.LKey ^= 0x55555
	require.ErrorIs(t, a.PostAdvise(cq, 4, hca.Prefetch, []hca.SGE{bad}), hca.ErrInvalid)
	hole := Hole(t, 2*page, page, 2*page)
	mh := Register(t, a, hole, Everything|hca.OnDemand)
	require.NoError(t, a.PostAdvise(cq, 5, hca.Prefetch, []hca.SGE{SGE(mh, hole)}))
	wc = Next(t, cq)
	require.EqualValues(t, 5, wc.ID)
	require.ErrorIs(t, wc.Err, hca.ErrBadAddress)
	Quiet(t, cq)
	require.NoError(t, cq.Close())
}

// An advice that comes too late completes, one way or the other, and does no
// harm.
func testAdviseThenDeregister(t *testing.T, a, _ hca.Device) {
	const n = 64
	cq, err := a.NewCQ(n)
	require.NoError(t, err)
	m := Map(t, 64*page)
	for i := range n {
		mr, err := a.Register(hca.RangeOf(m), Everything|hca.OnDemand)
		require.NoError(t, err)
		require.NoError(t, a.PostAdvise(cq, uint64(i), hca.PrefetchWrite, []hca.SGE{SGE(mr, m)}))
		require.NoError(t, a.Deregister(mr))
	}
	for range n {
		wc := Next(t, cq)
		if wc.Err != nil {
			require.ErrorIs(t, wc.Err, hca.ErrInvalid)
		}
	}
	require.NoError(t, cq.Close())
}
