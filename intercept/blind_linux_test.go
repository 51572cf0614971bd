//go:build linux && cgo && (amd64 || arm64 || riscv64 || loong64)

package intercept

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept/internal/eventtest"
	"example.com/holdfast/intercept/internal/uffd"
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

// Another userfaultfd may take pages out of memory that is not its own.
func TestDoesNotSee_UserfaultMove(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a, to := memory(t, 1), area(t, 1)
		watched(t, m, a)
		_, err := rawMmap(to.Addr, uintptr(to.Len), rw, private|unix.MAP_FIXED, -1, 0)
		require.NoError(t, err)
		other, err := uffd.Open(uffd.UserModeOnly)
		require.NoError(t, err)
		defer unix.Close(other)
		require.NoError(t, uffd.Enable(other, uffd.FeatureWPAsync|uffd.FeatureWPUnpop))
		require.NoError(t, uffd.Register(other, to.Addr, to.End()))
		const cmdMove = 0xc028aa05 // UFFDIO_MOVE, linux/userfaultfd.h
		arg := struct {
			dst, src, length, mode uint64
			moved                  int64
		}{dst: to.Addr, src: a.Addr, length: a.Len}
		var errno unix.Errno
		events := during(t, m, func() {
			_, _, errno = unix.Syscall(unix.SYS_IOCTL, uintptr(other), cmdMove, uintptr(unsafe.Pointer(&arg)))
		})
		if errno == unix.EINVAL && arg.moved == 0 {
			t.Skip("this kernel has no UFFDIO_MOVE (Linux 6.8)")
		}
		require.Zero(t, errno)
		require.Empty(t, events)
		require.Equal(t, byte(0xa5), peek(to.Addr), "the page is not there")
		require.Zero(t, peek(a.Addr), "the page stayed")
	})
}

// After fork the first write of the parent gets it a page of its own; an
// adapter that pinned the old one goes on with that. Nobody is told.
func TestDoesNotSee_ForkCopyOnWrite(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 1)
		watched(t, m, a)
		require.Empty(t, during(t, m, func() {
			release := eventtest.ForkAndHold(t)
			poke(a.Addr, 1)
			release()
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
			eventtest.ForkUnmap(t, a.Addr, a.Len)
		}))
		require.Equal(t, byte(0xa5), peek(a.Addr))
		watched(t, m, a)
	})
}
