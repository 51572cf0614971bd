package eventtest

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// ForkUnmap has a forked child unmap its copy of our memory, and waits for it.
func ForkUnmap(t testing.TB, addr, length uint64) {
	t.Helper()
	pid := fork(-1, unix.SYS_MUNMAP, uintptr(addr), uintptr(length), 0)
	require.Positive(t, pid)
	wait(t, pid)
}

// ForkAndHold forks a child that holds copies of all descriptors until the
// function is called that it returns, which waits for it to end, or this
// process ends.
func ForkAndHold(t testing.TB) (release func()) {
	t.Helper()
	var pipe [2]int
	var b byte
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	pid := fork(pipe[1], unix.SYS_READ, uintptr(pipe[0]), uintptr(unsafe.Pointer(&b)), 1)
	require.Positive(t, pid)
	return func() {
		t.Helper()
		_, err := unix.Write(pipe[1], []byte{0})
		require.NoError(t, err)
		wait(t, pid)
		require.NoError(t, unix.Close(pipe[0]))
		require.NoError(t, unix.Close(pipe[1]))
	}
}

func wait(t testing.TB, pid int) {
	t.Helper()
	var st unix.WaitStatus
	_, err := unix.Wait4(pid, &st, 0, nil)
	require.NoError(t, err)
	require.True(t, st.Exited() && st.ExitStatus() == 0, "the child: %v", st)
}

// fork forks; the child, which may do nothing but raw system calls, closes a
// descriptor, makes one call and exits with its errno. -1: fork failed.
//
//go:norace
//go:uintptrescapes
func fork(closed int, nr, a, b, c uintptr) int {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return -1
	}
	if pid == 0 {
		unix.RawSyscall(unix.SYS_CLOSE, uintptr(closed), 0, 0)
		_, _, errno := unix.RawSyscall(nr, a, b, c)
		for {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(errno), 0, 0)
		}
	}
	return int(pid)
}
