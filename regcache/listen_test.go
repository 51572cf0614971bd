package regcache

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

func TestListener(t *testing.T) {
	c, _, m := rig(t, hca.MemForeign, Config{MaxRegions: 2})
	got := make(chan Notice, 10)
	l, err := c.Listen(func(n Notice) bool {
		if !n.Reclaimed { // a call back into the cache, of the very range
			r, err := c.Get(n.Range, 0)
			if err != nil {
				t.Error(err)
			} else {
				r.Release()
			}
		}
		got <- n
		return true
	})
	require.NoError(t, err)
	r := mustGet(t, c, at(0, 2), 0)
	key := r.LKey()
	r.Release()
	m.event(at(1, 1))
	n := <-got
	require.Equal(t, Notice{Range: at(0, 2), LKey: key, RKey: key}, n)
	mustGet(t, c, at(10, 1), 0).Release()
	mustGet(t, c, at(12, 1), 0).Release() // evicts
	require.True(t, (<-got).Reclaimed)
	l.Close()
	l.Close()
	for len(got) > 0 { // what it was told before: how many had to go is not the matter here
		<-got
	}
	m.event(at(10, 4))
	quiet(t, c)
	require.Empty(t, got, "no call after Close")
}

// A listener that blocks harms nobody, and is told that it missed something.
func TestListenerThatBlocks(t *testing.T) {
	c, _, m := rig(t, hca.MemForeign, Config{MaxMerge: 1})
	begun, hold := make(chan struct{}), make(chan struct{})
	lost := make(chan bool, 2)
	first := true
	l, err := c.Listen(func(n Notice) bool {
		if first {
			first = false
			close(begun)
			<-hold
			return true
		}
		lost <- n.Lost
		return false
	})
	require.NoError(t, err)
	for i := range uint64(maxNotices + 2) {
		mustGet(t, c, at(i, 1), 0).Release()
		if i == 0 {
			m.event(at(0, 1))
			<-begun
		}
	}
	m.event(at(0, maxNotices+2))
	quiet(t, c)
	require.Zero(t, c.Stats().Registered)
	close(hold)
	require.True(t, <-lost)
	l.Close()
}

// Closing the cache tells the rest and lets listeners go.
func TestListenerAtTheEnd(t *testing.T) {
	c, _, _ := rig(t, hca.MemForeign, Config{})
	got := make(chan Notice, 10)
	l, err := c.Listen(func(n Notice) bool { got <- n; return true })
	require.NoError(t, err)
	mustGet(t, c, at(0, 1), 0).Release()
	require.NoError(t, c.Close())
	require.True(t, (<-got).Reclaimed)
	<-l.done
	l.Close()
	_, err = c.Listen(func(Notice) bool { return true })
	require.ErrorIs(t, err, hca.ErrClosed)
}

// C11, the cache's half: an exported Region is deregistered at once when its
// memory goes away, although it is held; its holder is told; its Release is
// harmless. One whose export was closed is not.
func TestC11_Revocable(t *testing.T) {
	c, b, m := rig(t, hca.MemForeign, Config{})
	r := mustGet(t, c, at(0, 2), hca.LocalWrite|hca.RemoteWrite)
	same := mustGet(t, c, at(0, 1), hca.LocalWrite)
	x, err := r.Export()
	require.NoError(t, err)
	y, err := same.Export()
	require.NoError(t, err)
	y.Close()
	y.Close()
	m.event(at(1, 1))
	<-x.Revoked()
	live, _, _ := b.counts()
	require.Zero(t, live, "the keys are dead when the holder is told")
	_, err = r.Export()
	require.ErrorIs(t, err, hca.ErrBadAddress)
	fresh := mustGet(t, c, at(0, 2), hca.LocalWrite)
	require.NotSame(t, r, fresh)
	r.Release()
	same.Release()
	fresh.Release()
	x.Close()
	require.EqualValues(t, 1, c.Stats().Revocations)

	held := mustGet(t, c, at(10, 1), 0)
	z, err := held.Export()
	require.NoError(t, err)
	z.Close()
	m.event(at(10, 1))
	quiet(t, c)
	select {
	case <-z.Revoked():
		t.Fatal("told although it was closed")
	default:
	}
	live, _, _ = b.counts()
	require.Equal(t, 2, live, "held and not exported: stays")
	held.Release()

	mustGet(t, c, at(20, 1), 0).Release()
	m.underWay.Store(true)
	once := mustGet(t, c, at(20, 1), 0)
	m.underWay.Store(false)
	_, err = once.Export()
	require.ErrorIs(t, err, hca.ErrNotSupported)
	once.Release()
}

// A backend that fails to deregister what was exported: the holder is told that
// too, and the cache works on.
func TestExportSaysThatTheKeysMayLive(t *testing.T) {
	c, b, m := rig(t, hca.MemForeign, Config{})
	r := mustGet(t, c, at(0, 1), hca.LocalWrite|hca.RemoteWrite)
	x, err := r.Export()
	require.NoError(t, err)
	same, err := r.Export()
	require.NoError(t, err)
	other := mustGet(t, c, at(10, 1), hca.LocalWrite|hca.RemoteWrite)
	y, err := other.Export()
	require.NoError(t, err)
	b.onDeregister = func(*hca.MR) error { return hca.ErrBusy }
	require.NoError(t, x.Err())
	m.event(at(0, 1))
	<-x.Revoked()
	<-same.Revoked()
	require.ErrorIs(t, x.Err(), hca.ErrBusy)
	require.ErrorIs(t, same.Err(), hca.ErrBusy)
	require.NoError(t, y.Err())
	b.onDeregister = nil
	m.event(at(10, 1))
	<-y.Revoked()
	require.NoError(t, y.Err(), "these keys are dead")
	r.Release()
	other.Release()
	x.Close()
	require.ErrorIs(t, x.Err(), hca.ErrBusy)
	s := c.Stats()
	require.EqualValues(t, 1, s.DeregisterErrors)
	require.Zero(t, s.Registered)
	mustGet(t, c, at(0, 1), 0).Release()
	require.ErrorIs(t, c.Close(), hca.ErrBusy)
	b.live = nil // the one that would not go
}

// In builds that trace, what was forgotten is named by its place.
func TestTrace(t *testing.T) {
	if !debugging {
		t.Skip("this build does not trace: it needs -race or the tag holdfast_debug")
	}
	c, _, m := rig(t, hca.MemForeign, Config{})
	r := mustGet(t, c, at(0, 1), 0)
	err := c.Close()
	require.ErrorIs(t, err, hca.ErrBusy)
	require.ErrorContains(t, err, "mustGet")
	r.Release()
	require.Panics(t, r.Release)
	require.Contains(t, r.traceReleases(), "TestTrace")
	m.event(at(0, 1))
	quiet(t, c)
	require.NotEqualValues(t, 1, r.LKey(), "poisoned")
}
