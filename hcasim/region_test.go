package hcasim

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Who retires a region waits for its users, and nobody can use it after.
func TestRetireWaits(t *testing.T) {
	r := &region{}
	require.True(t, r.acquire())
	require.True(t, r.acquire())
	done := make(chan bool, 1)
	go func() { done <- r.retire() }()
	for r.state.Load()&regionDead == 0 { // until it has begun
		runtime.Gosched()
	}
	require.False(t, r.acquire(), "dead already")
	r.release()
	require.False(t, r.retire(), "only once")
	select {
	case <-done:
		t.Fatal("retired with a user left")
	case <-time.After(20 * time.Millisecond):
	}
	r.release()
	require.True(t, <-done)
	require.False(t, r.acquire())
	require.False(t, r.retire())
}

// Users that come and go all the time neither keep it alive nor slip through.
func TestRetireRace(t *testing.T) {
	for range 500 {
		r := &region{}
		var retired atomic.Bool
		var late atomic.Uint32
		var users sync.WaitGroup
		stop := make(chan struct{})
		for range 2 {
			users.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if r.acquire() {
						if retired.Load() {
							late.Add(1)
						}
						r.release()
					}
				}
			})
		}
		ok := r.retire()
		retired.Store(true)
		require.True(t, ok)
		close(stop)
		users.Wait()
		require.Zero(t, late.Load())
	}
}
