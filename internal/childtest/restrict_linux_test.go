package childtest

import (
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The filter holds in every thread, those that were there before it included.
func TestForbid(t *testing.T) {
	Run(t, 20*time.Second, nil, func(t *testing.T) {
		const threads = 4
		var ready, done sync.WaitGroup
		forbidden := make(chan struct{})
		var got [threads]error
		for i := range threads {
			ready.Add(1)
			done.Add(1)
			go func() {
				defer done.Done()
				runtime.LockOSThread() // never unlocked: the thread is this goroutine's own
				ready.Done()
				<-forbidden
				_, got[i] = unix.MemfdCreate("forbidden", 0)
			}()
		}
		ready.Wait()
		fd, err := unix.MemfdCreate("allowed", 0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(fd))
		Forbid(t, unix.SYS_IO_URING_SETUP, unix.SYS_MEMFD_CREATE)
		close(forbidden)
		done.Wait()
		for _, err := range got {
			require.ErrorIs(t, err, unix.EPERM)
		}
		_, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, 0, 0)
		require.Equal(t, unix.EPERM, errno)
		_, err = os.ReadFile("/proc/self/status")
		require.NoError(t, err, "what is not forbidden still works")
	})
}

// Without privileges the limit of locked memory counts.
func TestDropPrivileges(t *testing.T) {
	Run(t, 20*time.Second, nil, func(t *testing.T) {
		DropPrivileges(t, 54001, 64<<10)
		require.Equal(t, 54001, os.Getuid())
		m, err := unix.Mmap(-1, 0, 128<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		require.NoError(t, err)
		require.NoError(t, unix.Mlock(m[:32<<10]))
		require.ErrorIs(t, unix.Mlock(m), unix.ENOMEM)
		require.NoError(t, unix.Munmap(m))
		_, err = os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
	})
}

// A part that skips does not make the whole of it skipped.
func TestPartSkips(t *testing.T) {
	defer func() {
		if t.Skipped() {
			t.Error("skipped as a whole")
		}
	}()
	Run(t, 20*time.Second, nil, func(t *testing.T) {
		t.Run("Part", func(t *testing.T) { t.Skip("on purpose") })
	})
}
