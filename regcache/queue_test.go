package regcache

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// collect polls n outcomes by id.
func collect(t *testing.T, q *Queue, n int) map[uint64]Done {
	t.Helper()
	got := map[uint64]Done{}
	for buf := make([]Done, 7); len(got) < n; {
		require.NoError(t, q.Wait(context.Background()))
		for _, d := range buf[:q.Poll(buf)] {
			got[d.ID] = d
		}
	}
	return got
}

func TestQueueThousands(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{MaxMerge: 1})
	q, err := c.NewQueue(QueueConfig{})
	require.NoError(t, err)
	hold := make(chan struct{})
	b.onRegister = func(hca.Range, hca.Access) error { <-hold; return nil }
	const n = 3000
	for i := range uint64(n) {
		_, err := q.Post(i, at(i*2, 1), hca.LocalWrite)
		require.NoError(t, err)
	}
	require.Zero(t, q.Poll(make([]Done, 1)), "none can be done")
	close(hold)
	for id, d := range collect(t, q, n) {
		require.NoError(t, d.Err)
		require.True(t, d.Region.Range().Contains(at(id*2, 1)))
		d.Region.Release()
	}
	// Again: all are hits and complete within Post.
	buf := make([]byte, 100)
	h, err := c.GetBytes(buf, 0)
	require.NoError(t, err)
	h.Release()
	_, err = q.PostBytes(1, buf, 0)
	require.NoError(t, err)
	_, err = q.Post(2, at(0, 1), 0)
	require.NoError(t, err)
	out := make([]Done, 3)
	require.Equal(t, 2, q.Poll(out))
	out[0].Region.Release()
	out[1].Region.Release()
	require.NoError(t, q.Close())
	require.ErrorIs(t, q.Close(), hca.ErrClosed)
	_, err = q.Post(1, at(0, 1), 0)
	require.ErrorIs(t, err, hca.ErrClosed)
	require.ErrorIs(t, q.Wait(context.Background()), hca.ErrClosed)
}

func TestQueueErrorsAndFull(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{})
	for _, bad := range []QueueConfig{{Depth: -1}, {Workers: -1}} {
		_, err := c.NewQueue(bad)
		require.ErrorIs(t, err, hca.ErrInvalid)
	}
	q, err := c.NewQueue(QueueConfig{Depth: 2, Workers: 1})
	require.NoError(t, err)
	b.onRegister = func(hca.Range, hca.Access) error { return hca.ErrBadAddress }
	for i := range uint64(2) {
		_, err := q.Post(i, at(i, 1), 0)
		require.NoError(t, err)
	}
	_, err = q.Post(9, at(9, 1), 0)
	require.ErrorIs(t, err, hca.ErrQueueFull)
	for _, d := range collect(t, q, 2) {
		require.ErrorIs(t, d.Err, hca.ErrBadAddress)
		require.Nil(t, d.Region)
	}
	_, err = q.Post(1, hca.Range{}, 0)
	require.NoError(t, err)
	require.ErrorIs(t, collect(t, q, 1)[1].Err, hca.ErrInvalid)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, q.Wait(ctx), context.Canceled)
	require.NoError(t, q.Close())
}

func TestQueueCancel(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{})
	q, err := c.NewQueue(QueueConfig{Workers: 1})
	require.NoError(t, err)
	begun, hold := make(chan struct{}), make(chan struct{})
	b.onRegister = func(hca.Range, hca.Access) error { begun <- struct{}{}; <-hold; return nil }
	running, err := q.Post(0, at(0, 1), 0)
	require.NoError(t, err)
	<-begun
	waiting, err := q.Post(1, at(2, 1), 0)
	require.NoError(t, err)
	require.True(t, q.Cancel(waiting))
	require.False(t, q.Cancel(waiting))
	require.ErrorIs(t, collect(t, q, 1)[1].Err, ErrCanceled)
	require.True(t, q.Cancel(running))
	hold <- struct{}{}
	require.ErrorIs(t, collect(t, q, 1)[0].Err, ErrCanceled)
	require.False(t, q.Cancel(running))
	_, made, _ := b.counts()
	require.Equal(t, 1, made)

	// Closed with one under way and one that waits: nothing is left held.
	for i := range uint64(2) {
		_, err = q.Post(i, at(10+i*2, 1), 0)
		require.NoError(t, err)
	}
	<-begun
	closed := make(chan error)
	go func() { closed <- q.Close() }()
	for shut := false; !shut; runtime.Gosched() {
		q.mu.Lock()
		shut = q.closed
		q.mu.Unlock()
	}
	hold <- struct{}{}
	require.NoError(t, <-closed)
}

func TestQueueStorm(t *testing.T) {
	c, _, m := rig(t, hca.MemForeign, Config{MaxRegions: 16})
	q, err := c.NewQueue(QueueConfig{})
	require.NoError(t, err)
	const posters, each = 4, 2000
	var wg sync.WaitGroup
	for p := range uint64(posters) {
		wg.Go(func() {
			for i := range uint64(each) {
				ticket, err := q.Post(p*each+i, at(i*7%64, 2), 0)
				for errors.Is(err, hca.ErrQueueFull) { // the poller makes room
					runtime.Gosched()
					ticket, err = q.Post(p*each+i, at(i*7%64, 2), 0)
				}
				if err != nil {
					t.Error(err)
					return
				}
				if i%3 == 0 {
					q.Cancel(ticket)
				}
				if i%5 == 0 {
					m.event(at(i%64, 1))
				}
			}
		})
	}
	var polled atomic.Int64
	wg.Go(func() {
		for buf := make([]Done, 16); polled.Load() < posters*each; {
			if err := q.Wait(context.Background()); err != nil {
				t.Error(err)
				return
			}
			n := q.Poll(buf)
			for _, d := range buf[:n] {
				if d.Region != nil {
					d.Region.Release()
				}
			}
			polled.Add(int64(n))
		}
	})
	wg.Wait()
	require.NoError(t, q.Close())
}
