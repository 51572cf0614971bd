package childtest

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Every call of the thread is noted, with its arguments and in order, whichever
// way it is made, and what other threads call meanwhile is theirs.
func TestCalls(t *testing.T) {
	Calls(t, 20*time.Second, nil, func(t *testing.T) func() {
		var stop atomic.Bool
		var other sync.WaitGroup
		other.Go(func() {
			for !stop.Load() {
				unix.Gettid()
			}
		})
		t.Cleanup(func() {
			stop.Store(true)
			other.Wait()
		})
		return func() {
			unix.RawSyscall(unix.SYS_LSEEK, ^uintptr(0), 7, 9)
			unix.Getuid()
			_, _ = unix.Seek(-1, 3, 4)
		}
	}, func(t *testing.T, calls []Call) {
		require.Len(t, calls, 3)
		require.EqualValues(t, unix.SYS_LSEEK, calls[0].Nr)
		require.EqualValues(t, 7, calls[0].Args[1])
		require.EqualValues(t, unix.SYS_GETUID, calls[1].Nr)
		require.EqualValues(t, unix.SYS_LSEEK, calls[2].Nr)
		require.EqualValues(t, 3, calls[2].Args[1])
		require.EqualValues(t, 4, calls[2].Args[2])
	})
}

// A run in which the scheduler had a hand is not the one that counts, and code
// that calls nothing has nothing noted.
func TestCallsOfAThreadThatWaited(t *testing.T) {
	Calls(t, 20*time.Second, nil, func(t *testing.T) func() {
		slow := 3 // the run before what counts, and two more
		return func() {
			if slow--; slow >= 0 {
				for began := time.Now(); time.Since(began) < 30*time.Millisecond; {
					unix.Getuid()
				}
			}
		}
	}, func(t *testing.T, calls []Call) {
		require.Empty(t, calls)
	})
}

// What skips in the child is skipped.
func TestCallsSkips(t *testing.T) {
	t.Run("Part", func(t *testing.T) {
		defer func() {
			if !InChild() && !t.Skipped() {
				t.Error("not skipped")
			}
		}()
		Calls(t, 20*time.Second, nil, func(t *testing.T) func() {
			t.Skip("on purpose")
			return nil
		}, func(t *testing.T, calls []Call) { t.Error("there is nothing to check") })
	})
}
