package intercept

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/internal/childtest"
	"example.com/holdfast/regcache"
)

var _ regcache.Monitor = (*Monitor)(nil)

func TestUserfaultStarts(t *testing.T) {
	childtest.Run(t, 20*time.Second, nil, func(t *testing.T) {
		m, err := Userfault()
		require.NoError(t, err)
		t.Log(m)
		f, err := m.Subscribe(nil)
		require.NoError(t, err)
		r, err := m.Exercise()
		require.NoError(t, err)
		var buf [8]hca.Event
		settle(t, m)
		n := f.Next(buf[:])
		require.Equal(t, 1, n)
		require.Equal(t, hca.Event{Range: r, Cause: hca.CauseUnmap}, buf[0])
		require.ErrorIs(t, m.Close(), hca.ErrBusy)
		require.NoError(t, f.Close())
		require.NoError(t, m.Close())
		require.ErrorIs(t, m.Close(), hca.ErrClosed)
	})
}

// settle waits for the counter to be settled and gives it.
func settle(t *testing.T, m *Monitor) uint64 {
	t.Helper()
	for began := time.Now(); ; {
		if g := m.counter.Load(); g&hca.Unsettled == 0 {
			return g
		}
		require.Less(t, time.Since(began), 5*time.Second, "the counter does not settle")
	}
}
