//go:build linux && cgo && (amd64 || arm64 || riscv64 || loong64)

package intercept

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/internal/leaktest"
)

// What userfaultfd does not report, row by row of the table in docs. Each test
// shows that the memory did change and that no event came.

func TestDoesNotSee_Mprotect(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 2)
		watched(t, m, a)
		require.Empty(t, during(t, m, func() {
			require.NoError(t, unix.Mprotect(unsafe.Slice((*byte)(pointer(a.Addr)), a.Len), unix.PROT_READ))
		}))
		watched(t, m, a)
		// The watch is still there.
		require.Equal(t, []hca.Event{unmapEvent(a)}, during(t, m, func() { require.NoError(t, rawMunmap(a.Addr, uintptr(a.Len))) }))
	})
}

func TestDoesNotSee_GuardInstall(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 2)
		watched(t, m, a)
		var err error
		events := during(t, m, func() {
			if err = rawMadvise(a.Addr, uintptr(a.Len), unix.MADV_GUARD_INSTALL); err == nil {
				err = rawMadvise(a.Addr, uintptr(a.Len), unix.MADV_GUARD_REMOVE)
			}
		})
		if err == unix.EINVAL {
			t.Skip("this kernel has no MADV_GUARD_INSTALL (Linux 6.13)")
		}
		require.NoError(t, err)
		require.Empty(t, events)
		require.Zero(t, peek(a.Addr), "the page stayed")
	})
}

func TestDoesNotSee_Pageout(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 2)
		watched(t, m, a)
		require.Empty(t, during(t, m, func() {
			require.NoError(t, rawMadvise(a.Addr, uintptr(a.Len), unix.MADV_PAGEOUT))
			require.NoError(t, rawMadvise(a.Addr, uintptr(a.Len), unix.MADV_COLD))
		}))
		require.Equal(t, byte(0xa5), peek(a.Addr), "nothing is lost by it")
	})
}

// file maps a memfd, watched, and returns it with the file.
func file(t *testing.T, m *Monitor) (hca.Range, int) {
	fd := memfd(t, 4)
	a := area(t, 4)
	mapAt(t, a, unix.MAP_SHARED, fd)
	watched(t, m, a)
	return a, fd
}

func TestDoesNotSee_Truncate(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a, fd := file(t, m)
		require.Empty(t, during(t, m, func() {
			require.NoError(t, unix.Ftruncate(fd, 0))
			require.NoError(t, unix.Ftruncate(fd, int64(a.Len)))
		}))
		require.Zero(t, peek(a.Addr), "the page stayed")
	})
}

func TestDoesNotSee_HolePunch(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a, fd := file(t, m)
		require.Empty(t, during(t, m, func() {
			require.NoError(t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(pageSize)))
		}))
		require.Zero(t, peek(a.Addr), "the page stayed")
		require.Equal(t, byte(0xa5), peek(a.Addr+pageSize))
	})
}

func TestDoesNotSee_RemoveThroughOtherMapping(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a, fd := file(t, m)
		other, err := rawMmap(0, uintptr(a.Len), rw, unix.MAP_SHARED, fd, 0)
		require.NoError(t, err)
		leaktest.Area(t, other, a.Len)
		require.Empty(t, during(t, m, func() { require.NoError(t, rawMadvise(other, uintptr(a.Len), unix.MADV_REMOVE)) }))
		require.Zero(t, peek(a.Addr), "the page stayed")
	})
}

func TestDoesNotSee_RemapFilePages(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a, _ := file(t, m)
		poke(a.Addr+pageSize, 0x77)
		require.Empty(t, during(t, m, func() {
			_, _, errno := unix.Syscall6(unix.SYS_REMAP_FILE_PAGES, uintptr(a.Addr), uintptr(pageSize), 0, 1, 0, 0)
			require.Zero(t, errno)
		}))
		require.Equal(t, byte(0x77), peek(a.Addr), "the first page shows the second of the file")
	})
}

// shm attaches a new System V segment of two pages.
func shm(t *testing.T) (id int, r hca.Range) {
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, int(2*pageSize), unix.IPC_CREAT|0o600)
	require.NoError(t, err)
	b, err := unix.SysvShmAttach(id, 0, 0)
	require.NoError(t, err)
	leaktest.Area(t, hca.RangeOf(b).Addr, 2*pageSize)
	_, err = unix.SysvShmCtl(id, unix.IPC_RMID, nil) // goes with its last user
	require.NoError(t, err)
	return id, hca.RangeOf(b)
}

func TestDoesNotSee_Shmdt(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		_, a := shm(t)
		watched(t, m, a)
		require.Empty(t, during(t, m, func() {
			require.NoError(t, unix.SysvShmDetach(unsafe.Slice((*byte)(pointer(a.Addr)), a.Len)))
		}))
		_, mapped, err := m.kernel.mapping(a.Addr)
		require.NoError(t, err)
		require.False(t, mapped, "the mapping stayed")
	})
}

func TestDoesNotSee_ShmatRemap(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 2)
		watched(t, m, a)
		id, b := shm(t)
		poke(b.Addr, 0x77)
		const shmRemap = 0x4000 // SHM_REMAP, sys/shm.h
		require.Empty(t, during(t, m, func() {
			at, _, errno := unix.Syscall(unix.SYS_SHMAT, uintptr(id), uintptr(a.Addr), shmRemap)
			require.Zero(t, errno)
			require.Equal(t, uintptr(a.Addr), at)
		}))
		require.Equal(t, byte(0x77), peek(a.Addr), "the segment lies over it")
	})
}

// After fork the first write of the parent gets it a page of its own; an
// adapter that pinned the old one goes on with that. Nobody is told.
func TestDoesNotSee_ForkCopyOnWrite(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 1)
		watched(t, m, a)
		var pipe [2]int
		require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
		defer unix.Close(pipe[0])
		defer unix.Close(pipe[1])
		require.Empty(t, during(t, m, func() {
			pid := forkAndHold(pipe[0])
			require.Positive(t, pid)
			poke(a.Addr, 1)
			_, err := unix.Write(pipe[1], []byte{0})
			require.NoError(t, err)
			var st unix.WaitStatus
			_, err = unix.Wait4(pid, &st, 0, nil)
			require.NoError(t, err)
			require.Zero(t, st.ExitStatus())
		}))
	})
}

// What a forked child does to its copy of the memory is its own affair, and it
// waits for nobody.
func TestDoesNotSee_ForkedChild(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 2)
		watched(t, m, a)
		require.Empty(t, during(t, m, func() {
			pid := forkUnmap(uintptr(a.Addr), uintptr(a.Len))
			require.Positive(t, pid)
			var st unix.WaitStatus
			_, err := unix.Wait4(pid, &st, 0, nil)
			require.NoError(t, err)
			require.Zero(t, st.ExitStatus())
		}))
		require.Equal(t, byte(0xa5), peek(a.Addr))
		watched(t, m, a)
	})
}

// forkUnmap has a child with a copy of our memory unmap it. The child may do
// nothing but raw system calls. -1: fork failed.
//
//go:norace
func forkUnmap(addr, length uintptr) int {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return -1
	}
	if pid == 0 {
		_, _, errno := unix.RawSyscall(unix.SYS_MUNMAP, addr, length, 0)
		for {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(errno), 0, 0)
		}
	}
	return int(pid)
}

// forkAndHold forks; the child, which may do nothing but raw system calls,
// waits for a byte on fd and exits. -1: fork failed.
//
//go:norace
func forkAndHold(fd int) int {
	var b byte
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return -1
	}
	if pid == 0 {
		unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b)), 1)
		for {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	return int(pid)
}
