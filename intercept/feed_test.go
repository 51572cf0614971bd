package intercept

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept/internal/ring"
)

func TestFeedsAreIndependent(t *testing.T) {
	m := explicit(t)
	var feeds [2]hca.Feed
	for i := range feeds {
		f, err := m.Subscribe(nil)
		require.NoError(t, err)
		feeds[i] = f
	}
	m.Begin(pages(0, 1), hca.CauseUnmap).End()
	require.Len(t, drain(feeds[0]), 1)
	m.Begin(pages(1, 1), hca.CauseUnmap).End()
	require.Len(t, drain(feeds[1]), 2)
	require.Len(t, drain(feeds[0]), 1)
	late, err := m.Subscribe(nil)
	require.NoError(t, err)
	require.Empty(t, drain(late), "from now on, not before")
	err = m.Close()
	require.ErrorIs(t, err, hca.ErrBusy)
	require.ErrorContains(t, err, "3 feeds")
	for _, f := range append(feeds[:], late) {
		require.NoError(t, f.Close())
		require.ErrorIs(t, f.Close(), hca.ErrClosed)
	}
	require.NoError(t, m.Close())
	_, err = m.Subscribe(nil)
	require.ErrorIs(t, err, hca.ErrClosed)
	require.NotZero(t, m.Counter().Load()&hca.Unsettled, "nothing is vouched for any more")
	require.Equal(t, hca.UnkeptNoSource, m.Watch(pages(0, 1)).Why)
}

// A feed that is not read costs nothing and learns that it lost something; the
// other one loses nothing.
func TestFeedOverflow(t *testing.T) {
	m := explicit(t)
	slow, err := m.Subscribe(nil)
	require.NoError(t, err)
	quick, err := m.Subscribe(nil)
	require.NoError(t, err)
	got := 0
	n := m.cfg.Ring + 5
	for i := range n {
		m.Begin(pages(uint64(i), 1), hca.CauseDiscard).End()
		if i%100 == 0 {
			got += len(drain(quick))
		}
	}
	require.Equal(t, n, got+len(drain(quick)))
	require.Equal(t, []hca.Event{{Range: hca.Whole, Cause: hca.CauseLost}}, drain(slow))
	m.Begin(pages(0, 1), hca.CauseDiscard).End()
	require.Equal(t, []hca.Event{{Range: pages(0, 1), Cause: hca.CauseDiscard}}, drain(slow), "and goes on")
	require.Equal(t, uint64(1), m.Stats().Lost)
	require.NoError(t, slow.Close())
	require.NoError(t, quick.Close())
}

// Two sources, one order: what settled before something else was taken comes
// before it.
func TestFeedOrder(t *testing.T) {
	ev := func(i uint64) hca.Event { return hca.Event{Range: pages(i, 1), Cause: hca.CauseOwner} }
	said, seen := ring.New(64), ring.New(64)
	said.Push(ev(1), 1)
	seen.Push(ev(2), 2)
	seen.Push(ev(3), 2) // taken in one read
	said.Push(ev(4), 4)
	said.Push(ev(5), 5)
	seen.Push(ev(6), 6)
	c := cursor{said: said, seen: seen}
	for i := uint64(1); i <= 6; i++ {
		var buf [1]hca.Event
		require.Equal(t, 1, c.next(buf[:]))
		require.Equal(t, ev(i), buf[0])
	}
	require.Zero(t, c.next(make([]hca.Event, 4)))
}

func TestNextDoesNotAllocate(t *testing.T) {
	m := explicit(t)
	f, err := m.Subscribe(nil)
	require.NoError(t, err)
	defer f.Close()
	buf := make([]hca.Event, 8)
	require.Zero(t, testing.AllocsPerRun(100, func() { f.Next(buf) }))
	for range 200 {
		m.Begin(pages(0, 1), hca.CauseDiscard).End()
	}
	require.Zero(t, testing.AllocsPerRun(100, func() { f.Next(buf[:1]) }))
}

func TestWake(t *testing.T) {
	m := explicit(t)
	woken := make(chan struct{}, 1)
	var after atomic.Int64
	f, err := m.Subscribe(func() {
		after.Add(1)
		select {
		case woken <- struct{}{}:
		default:
		}
	})
	require.NoError(t, err)
	for range 100 {
		m.Begin(pages(0, 1), hca.CauseDiscard).End()
		select {
		case <-woken:
		case <-time.After(5 * time.Second):
			t.Fatal("not woken")
		}
		require.NotEmpty(t, drain(f))
		// A wake-up that was under way may still come; it finds nothing.
		select {
		case <-woken:
		default:
		}
	}
	require.NoError(t, f.Close())
	n := after.Load()
	other := make(chan struct{}, 1)
	f, err = m.Subscribe(func() {
		select {
		case other <- struct{}{}:
		default:
		}
	})
	require.NoError(t, err)
	m.Begin(pages(0, 1), hca.CauseDiscard).End()
	select {
	case <-other:
	case <-time.After(5 * time.Second):
		t.Fatal("not woken")
	}
	require.Equal(t, n, after.Load(), "called after Close")
	require.NoError(t, f.Close())
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		cfg   Config
		field string
	}{
		{Config{Descriptors: -1}, "Descriptors"}, {Config{Descriptors: 33}, "Descriptors"},
		{Config{Ring: 63}, "Ring"}, {Config{Ring: 65}, "Ring"}, {Config{Ring: 1 << 21}, "Ring"}, {Config{Ring: -64}, "Ring"},
	} {
		m, err := UserfaultConfig(c.cfg)
		require.Nil(t, m)
		require.ErrorIs(t, err, hca.ErrInvalid)
		require.ErrorContains(t, err, c.field)
	}
}
