package regcache

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// What the proof found, each reduced to the few steps that show it.

// Who joins a registration that asks for more than he does must not get its
// error: the memory may well allow what he wants.
func TestJoinedErrorIsNotThatOfWiderAccess(t *testing.T) {
	c, b, _ := rig(t, hca.MemForeign, Config{SweepEvery: -1})
	began, joined := make(chan struct{}), make(chan struct{})
	b.onRegister = func(_ hca.Range, a hca.Access) error {
		if a.Writes() { // read-only memory
			close(began)
			<-joined
			return hca.ErrAccess
		}
		return nil
	}
	writer := make(chan error)
	go func() {
		_, err := c.Get(at(0, 1), hca.LocalWrite)
		writer <- err
	}()
	<-began
	reader := make(chan error)
	go func() {
		r, err := c.Get(at(0, 1), hca.LocalRead)
		if err == nil {
			r.Release()
		}
		reader <- err
	}()
	for running := 0; running < 2; {
		c.mu.Lock()
		running = c.running
		c.mu.Unlock()
	}
	close(joined)
	require.ErrorIs(t, <-writer, hca.ErrAccess)
	require.NoError(t, <-reader)
}

// The last page of the address space cannot be rounded up to a whole one. What
// is answered must cover what was asked for all the same.
func TestLastPageOfTheAddressSpace(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{SweepEvery: -1})
	for _, g := range []hca.Range{
		{Addr: math.MaxUint64 - 100, Len: 50},
		{Addr: math.MaxUint64 - pg - 100, Len: pg + 50},
		{Addr: 1, Len: math.MaxUint64 - 1},
	} {
		for range 2 {
			r := mustGet(t, c, g, 0)
			require.True(t, r.Range().Contains(g), "%v for %v", r.Range(), g)
			r.Release()
		}
	}
}

// A look-up that comes too late, on a Region that is claimed already, takes its
// hit back; it must not be counted because the hits were read in between.
func TestHitsAreThoseOfTheClaim(t *testing.T) {
	c, _, m := rig(t, hca.MemOwned, Config{SweepEvery: -1})
	r := mustGet(t, c, at(0, 1), 0)
	m.event(at(0, 1))
	mustGet(t, c, at(2, 1), 0).Release() // applies the event: r is dead and held
	c.mu.Lock()
	released := make(chan struct{})
	go func() {
		r.Release() // claims r, and waits for the lock
		close(released)
	}()
	for r.state.Load()&stClaimed == 0 {
	}
	r.state.Add(stHit + stRef) // a hit that had found r in the index before
	c.mu.Unlock()
	<-released
	c.undoHit(r) // and sees that it is dead
	quiet(t, c)
	require.Zero(t, c.Stats().Hits)
}

// A Region that was exported and is replaced by a better one has its memory
// still: who holds it goes on, and so does his peer.
func TestReplacedIsNotRevoked(t *testing.T) {
	c, _, m := rig(t, hca.MemOwned, Config{SweepEvery: -1})
	r := mustGet(t, c, at(0, 1), hca.RemoteRead)
	x, err := r.Export()
	require.NoError(t, err)
	wider := mustGet(t, c, at(0, 1), hca.LocalWrite) // one for both takes its place
	require.NotSame(t, r, wider)
	wider.Release()
	settle(c)
	select {
	case <-x.Revoked():
		require.Fail(t, "revoked although nothing happened to the memory")
	default:
	}
	require.True(t, r.state.Load()&stClaimed == 0, "deregistered while held")
	// When its memory goes it is out of the index; it has to be revoked all the same.
	m.event(at(0, 1))
	settle(c)
	<-x.Revoked()
	x.Close()
	r.Release()
}

// The last Release comes between the moment in which a Region dies and that in
// which it is revoked: it must not stay in use for ever.
func TestRevokedBetweenDyingAndRelease(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{SweepEvery: -1})
	r := mustGet(t, c, at(0, 1), 0)
	x, err := r.Export()
	require.NoError(t, err)
	c.mu.Lock()
	c.unpublishLocked(r)
	r.cold.end = endInvalid
	require.False(t, r.kill(), "it is held")
	w := r.state.Add(^uint64(0)) // the first step of Release
	require.True(t, c.revokeLocked(r))
	c.mu.Unlock()
	r.releaseRare(w) // and the others
	settle(c)
	require.Zero(t, c.Stats().InUseOnce)
	x.Close()
}
