package regcache

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// somebody else's Get with another access revokes an export although the memory is as it was.
func TestExportRevokedByAnotherUsersGet(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{})
	r := mustGet(t, c, at(0, 1), hca.LocalWrite|hca.RemoteWrite)
	x, err := r.Export()
	require.NoError(t, err)
	o := mustGet(t, c, at(0, 1), hca.RemoteRead) // union replaces r
	quiet(t, c)
	select {
	case <-x.Revoked():
		live, _, _ := b.counts()
		t.Errorf("revoked and deregistered while held, and its memory did not go away (live %d)", live)
	default:
	}
	o.Release()
	r.Release()
	x.Close()
}

// the same by a Get of a larger range.
func TestExportRevokedByLargerGet(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{})
	r := mustGet(t, c, at(0, 1), hca.LocalWrite|hca.RemoteWrite)
	x, err := r.Export()
	require.NoError(t, err)
	o := mustGet(t, c, at(0, 2), hca.LocalWrite|hca.RemoteWrite)
	quiet(t, c)
	select {
	case <-x.Revoked():
		t.Error("revoked while held, and its memory did not go away")
	default:
	}
	o.Release()
	r.Release()
	x.Close()
}

// the last Release between kill and revoke: the Region stays loose for ever and Close is busy for ever.
func TestReleaseBetweenKillAndRevoke(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{})
	r := mustGet(t, c, at(0, 1), hca.LocalWrite|hca.RemoteWrite)
	_, err := r.Export()
	require.NoError(t, err)

	// removeLocked, with Release's subtraction between its two steps
	c.mu.Lock()
	r.cold.end = endInvalid
	c.unpublishLocked(r)
	require.False(t, r.kill())
	w := r.state.Add(^uint64(0)) // T2: Release, first instruction
	require.True(t, c.revokeLocked(r))
	c.mu.Unlock()
	r.releaseRare(w) // T2: the rest of Release

	require.NoError(t, c.Close(), "nobody holds anything")
}

// a late hit's undo between claim and retire: BytesDead and Hits wrong for good.
func TestLateHitBetweenClaimAndRetire(t *testing.T) {
	c, _, m := rig(t, hca.MemOwned, Config{})
	r := mustGet(t, c, at(0, 1), 0)
	h := mustGet(t, c, at(0, 1), 0) // one hit
	require.Same(t, r, h)
	h.Release()
	m.event(at(0, 1))
	c.mu.Lock()
	c.applyLocked()
	c.mu.Unlock()
	require.EqualValues(t, 1, c.Stats().Hits)
	// T1: last Release
	r.state.Add(^uint64(0))
	require.True(t, r.claim())
	// T2: a hit that had read the entry before the event
	w := r.state.Add(stHit + stRef)
	require.NotZero(t, w&stDead)
	c.undoHit(r)
	// T1 goes on
	c.retire(r)
	s := c.Stats()
	require.EqualValues(t, 0, s.BytesDead, "BytesDead")
	require.EqualValues(t, 1, s.Hits, "Hits")
}

// MaxIdle drops a Region that was used a moment ago because an older one is held.
func TestSweepOldDropsYoung(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{MaxIdle: time.Minute, SweepEvery: -1, MaxMerge: 1})
	old := mustGet(t, c, at(1<<20, 1), 0) // held
	c.mu.Lock()
	c.made = c.made.Add(-time.Hour) // an hour later
	c.mu.Unlock()
	mustGet(t, c, at(2<<20, 1), 0).Release()
	c.sweepOld(c.clock() - c.cfg.MaxIdle)
	require.Equal(t, 2, c.Stats().Regions, "the young one is kept")
	old.Release()
}

// a merge evicts everything when the backend is at its limit.
func TestMergeIsNotWorthAnEviction(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{})
	const limit = 40
	b.onRegister = func(g hca.Range, _ hca.Access) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		n := g.Len
		for mr := range b.live {
			n += mr.Range.Len
		}
		if n > limit*4096 {
			return hca.ErrNoMemory
		}
		return nil
	}
	for i := range uint64(28) { // others, apart
		mustGet(t, c, at(1000+3*i, 1), 0).Release()
	}
	for i := range uint64(7) {
		mustGet(t, c, at(i, 1), 0).Release()
	}
	require.Zero(t, c.Stats().Evictions)
	mustGet(t, c, at(7, 1), 0).Release() // 36 of 40 pages: fits as it is
	s := c.Stats()
	require.Zero(t, s.Evictions, "merges %d, retries %d", s.Merges, s.Retries)
}

// a range of MaxLen that is not aligned is refused because of rounding.
func TestMaxLenUnaligned(t *testing.T) {
	b := &nopBackend{info: BackendInfo{MaxLen: 1 << 20}}
	b.onRegister = func(g hca.Range, _ hca.Access) error {
		if g.Len > 1<<20 {
			return hca.ErrTooLong
		}
		return nil
	}
	m := &scriptMonitor{kind: hca.MemOwned}
	c, err := New(b, Config{Monitor: m})
	require.NoError(t, err)
	mustGet(t, c, hca.Range{Addr: 0x10000 + 8, Len: 1 << 20}, 0).Release()
	require.NoError(t, c.Close())
}

// canceled posts pile up.
func TestQueueCancelGrows(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{MaxMerge: 1})
	q, err := c.NewQueue(QueueConfig{Depth: 8, Workers: 1})
	require.NoError(t, err)
	hold := make(chan struct{})
	b.onRegister = func(hca.Range, hca.Access) error { <-hold; return nil }
	_, err = q.Post(0, at(0, 1), 0)
	require.NoError(t, err)
	var buf [4]Done
	for i := range uint64(10000) {
		tk, err := q.Post(i, at(10+i, 1), 0)
		require.NoError(t, err)
		q.Cancel(tk)
		for q.Poll(buf[:]) > 0 {
		}
	}
	q.mu.Lock()
	n := len(q.waiting)
	q.mu.Unlock()
	close(hold)
	require.NoError(t, q.Close())
	require.LessOrEqual(t, n, 8, "Depth is 8")
}

// Queue.mu is held while the backend deregisters.
func TestPostCallsBackendUnderLock(t *testing.T) {
	c, b, m := rig(t, hca.MemForeign, Config{MaxMerge: 1})
	q, err := c.NewQueue(QueueConfig{})
	require.NoError(t, err)
	mustGet(t, c, at(0, 1), 0).Release()
	once := true
	m.onProbe = func() {
		if once {
			once = false
			m.event(at(0, 1))
			for c.Stats().Invalidations == 0 {
				runtime.Gosched()
			}
		}
	}
	b.onDeregister = func(*hca.MR) error {
		q.Poll(nil) // hangs if the queue's lock is held
		return nil
	}
	_, err = q.Post(1, at(0, 1), 0)
	require.NoError(t, err)
	require.NoError(t, q.Close())
}

// Trim of one byte under on-demand paging drops everything.
func TestTrimOnDemand(t *testing.T) {
	c, err := New(&nopBackend{info: BackendInfo{Follows: true}}, Config{})
	require.NoError(t, err)
	for i := range uint64(10) {
		mustGet(t, c, at(3*i, 1), 0).Release()
	}
	require.Zero(t, c.Trim(1))
	require.Equal(t, 10, c.Stats().Regions)
	require.NoError(t, c.Close())
}

// in a race build the holder of a revoked Region races with the poison.
func TestPoisonRacesWithHolder(t *testing.T) {
	c, _, m := rig(t, hca.MemOwned, Config{})
	r := mustGet(t, c, at(0, 1), hca.LocalWrite)
	x, err := r.Export()
	require.NoError(t, err)
	key := r.RKey()
	m.event(at(0, 1))
	for range 1000 {
		c.Snapshot()
		_ = r.RKey()
	}
	<-x.Revoked()
	require.Equal(t, key, r.RKey())
	r.Release()
}

// all deregistration errors are returned by Close.
func TestCloseJoinsErrors(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{MaxMerge: 1})
	b.onDeregister = func(mr *hca.MR) error {
		return &hca.OpError{Op: "dereg", Range: mr.Range, Err: hca.ErrInvalid}
	}
	mustGet(t, c, at(0, 1), 0).Release()
	mustGet(t, c, at(5, 1), 0).Release()
	err := c.Close()
	require.ErrorContains(t, err, at(0, 1).String())
	require.ErrorContains(t, err, at(5, 1).String())
	b.live = nil // those that would not go
}

// What cannot be proved for now is registered for this one use, and evicts
// nothing: least of all what it could not prove.
func TestUnsettledEvictsNothing(t *testing.T) {
	c, _, m := rig(t, hca.MemForeign, Config{MaxBytes: 8 * pg, MaxMerge: 1})
	mustGet(t, c, at(0, 6), 0).Release()
	m.underWay.Store(true)
	r := mustGet(t, c, at(0, 6), 0)
	require.Equal(t, hca.UnkeptUnsettled, r.UsedOnce())
	r.Release()
	m.underWay.Store(false)
	s := c.Stats()
	require.Zero(t, s.Evictions)
	require.Equal(t, 1, s.Regions)
}

// Who asks for memory that cannot be kept does not wait for others who do.
func TestUnknownMemoryIsNotQueued(t *testing.T) {
	c, b, _ := rig(t, hca.MemUnknown, Config{})
	const n = 4
	var all sync.WaitGroup
	all.Add(n)
	b.onRegister = func(hca.Range, hca.Access) error {
		all.Done()
		all.Wait() // hangs unless all register at the same time
		return nil
	}
	var done sync.WaitGroup
	for range n {
		done.Go(func() {
			r, err := c.Get(at(0, 1), 0)
			if err != nil {
				t.Error(err)
				return
			}
			r.Release()
		})
	}
	done.Wait()
	require.EqualValues(t, n, c.Stats().UsedOnce[hca.UnkeptNoSource])
}

// A Close that gives up makes alive again what it had claimed. A hit that found
// it dead, and gave its reference back, came late and claimed it then: the backend
// was told to drop what stood in the index, alive.
func TestFoundLateClaimOfTheRevived(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{})
	r := mustGet(t, c, at(0, 1), 0)
	r.Release()
	r.state.Add(stHit + stRef) // a hit
	c.mu.Lock()
	r.state.Add(^(stHit + stRef) + 1)
	require.True(t, r.killIdle())
	c.mu.Unlock()
	r.state.Add(stHit + stRef)             // another, which finds it dead
	w := r.state.Add(^(stHit + stRef) + 1) // and undoes what it did,
	c.mu.Lock()
	r.revive()
	c.mu.Unlock()
	r.releaseRare(w) // the rest of which comes late
	live, _, _ := b.counts()
	require.Equal(t, 1, live)
	again := mustGet(t, c, at(0, 1), 0)
	require.Same(t, r, again)
	again.Release()
}

// However many Regions were hit since they were last looked at, the sweep drops none
// of them as unused, although an eviction loses patience.
func TestFoundSweepOfManyWarm(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{MaxIdle: time.Minute, MaxMerge: 1})
	const n = maxChances + 100
	for range 2 { // once to register, once to hit
		for i := range uint64(n) {
			mustGet(t, c, at(i*2, 1), 0).Release()
		}
	}
	require.Zero(t, c.sweepOld(c.clock()))
	require.Equal(t, n, c.sweepOld(c.clock()+1), "nobody hit them after that")
}
