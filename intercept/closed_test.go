package intercept

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// What every method of a closed monitor answers: nothing is vouched for, what
// can fail says so, and nothing hangs.
func closedAnswers(t *testing.T, m *Monitor) {
	t.Helper()
	r := pages(0, 1)
	require.NoError(t, m.Adopt(r))
	counter := m.Counter()
	require.NoError(t, m.Close())

	require.NotZero(t, counter.Load()&hca.Unsettled)
	require.Same(t, counter, m.Counter())
	for _, domains := range []uint32{0, 1, 1 << 31} {
		require.True(t, m.UnderWay(domains), "domains %#x", domains)
	}
	require.Equal(t, hca.Watch{Why: hca.UnkeptNoSource}, m.Watch(r))
	require.Equal(t, hca.MemUnknown, m.Kind(r))
	f, err := m.Subscribe(nil)
	require.Nil(t, f)
	require.ErrorIs(t, err, hca.ErrClosed)
	_, err = m.Exercise()
	require.ErrorIs(t, err, hca.ErrClosed)
	for name, err := range map[string]error{
		"Settled": m.Settled(r), "Adopt": m.Adopt(r), "Disown": m.Disown(r), "Close": m.Close(),
	} {
		require.ErrorIs(t, err, hca.ErrClosed, name)
	}
	for name, err := range map[string]error{
		"Settled": m.Settled(hca.Range{}), "Adopt": m.Adopt(hca.Range{}), "Disown": m.Disown(hca.Range{}),
	} {
		require.ErrorIs(t, err, hca.ErrInvalid, name)
	}
	for _, cause := range []hca.Cause{hca.CauseUnmap, hca.CauseDiscard} {
		op := m.Begin(r, cause)
		op.End()
		op.End()
	}
	require.Contains(t, m.String(), "closed")
	require.Contains(t, m.Stats().Source, "closed")
	require.Zero(t, m.Stats().Feeds)
	if m.source != nil {
		m.source.CatchUp()
		require.Equal(t, hca.MemUnknown, m.source.Kind(r.Addr, r.End()))
		require.Equal(t, hca.UnkeptNoSource, m.source.Watch(r.Addr, r.End()).Why)
	}
}

func TestClosedExplicit(t *testing.T) { closedAnswers(t, explicit(t)) }
