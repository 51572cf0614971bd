//go:build linux && (amd64 || arm64)

package bpf

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
)

// A thread puts a mapped file behind the descriptor that another has just called
// ftruncate with. (When the program at the entry looked at the file behind the
// descriptor, four of five such truncations were unseen.)
func TestSees_ReplacedDescriptor(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		mapped, fd := watchedFile(t, m)
		elsewhere := memfd(t, 1) // mapped by nobody
		number, err := unix.FcntlInt(uintptr(elsewhere), unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(t, err)
		defer unix.Close(number)
		f, err := m.Subscribe(nil)
		require.NoError(t, err)
		defer f.Close()
		told := func() (yes bool) {
			var buf [16]hca.Event
			for n := f.Next(buf[:]); n > 0; n = f.Next(buf[:]) {
				for _, ev := range buf[:n] {
					yes = yes || ev.Range.Overlaps(mapped)
				}
			}
			return yes
		}
		// The other thread spins, so that it comes in the middle of the call: at
		// different times, in most rounds too early or too late.
		const most, enough = 3_000, 20
		var turn, answered atomic.Int64
		var failed atomic.Bool
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with it
			for n := int64(1); ; n++ {
				for turn.Load() < n {
				}
				if turn.Load() > most {
					return
				}
				for range n % 400 {
				}
				if unix.Dup3(fd, number, unix.O_CLOEXEC) != nil {
					failed.Store(true)
				}
				answered.Store(n)
			}
		}()
		defer turn.Store(most + 1)
		cut := 0
		for n := int64(1); n <= most && cut < enough; n++ {
			require.NoError(t, unix.Ftruncate(fd, int64(mapped.Len)))
			require.NoError(t, unix.Dup3(elsewhere, number, unix.O_CLOEXEC))
			told()
			turn.Store(n)
			require.NoError(t, unix.Ftruncate(number, 0))
			for answered.Load() < n {
			}
			require.False(t, failed.Load())
			var st unix.Stat_t
			require.NoError(t, unix.Fstat(fd, &st))
			if st.Size == 0 {
				cut++
				require.True(t, told(), "the file was cut unseen")
			}
		}
		t.Logf("cut %d times", cut)
	})
}
