//go:build linux && (amd64 || arm64)

package bpf

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
	"example.com/holdfast/intercept/internal/eventtest"
)

// What this source reports, row by row of the table in docs. Each test does it
// by a raw system call, which knows nothing of the monitor.

func TestSees_Munmap(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a := memory(t, 8)
		kept(t, m, a)
		require.Equal(t, unmapped(part(a, 3, 2)), during(t, m, a, func() { munmap(t, part(a, 3, 2)) }), "the middle")
		eventtest.NotMapped(t, watch(t, m, a).Why, a)
		kept(t, m, part(a, 5, 3))
		require.Equal(t, unmapped(a), during(t, m, a, func() { munmap(t, a) }), "all of it")
	})
}

func TestSees_MapFixedOver(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a := memory(t, 5)
		half := part(a, 2, 2)
		require.Equal(t, unmapped(half), during(t, m, a, func() { mapAt(t, half, private, -1) }))
		kept(t, m, a)
		// Huge pages could lie there: up to where the address allows.
		const huge = 2 << 20
		space := area(t, 8*huge/int(pageSize))
		one := hca.Range{Addr: (space.Addr+huge-1)&^(huge-1) + 2*huge, Len: pageSize}
		events := during(t, m, one, func() { mapAt(t, one, private, -1) })
		require.Len(t, events, 1)
		require.Equal(t, one.Addr, events[0].Range.Addr)
		require.GreaterOrEqual(t, events[0].Range.Len, uint64(huge))
	})
}

func TestSees_MapElsewhere(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a := memory(t, 2)
		require.Empty(t, during(t, m, a, func() {
			_, err := unix.MmapPtr(-1, 0, pointer(a.Addr), uintptr(a.Len), rw, private|unix.MAP_FIXED_NOREPLACE)
			require.ErrorIs(t, err, unix.EEXIST)
			b := mmap(t, a.Addr, a.Len, rw, private, -1) // a hint
			require.NotEqual(t, a.Addr, b)
		}))
	})
}

func TestSees_Brk(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		brk := func(to uintptr) uintptr {
			now, _, _ := unix.RawSyscall(unix.SYS_BRK, to, 0, 0)
			return now
		}
		page := uintptr(pageSize)
		was := (brk(0) + page - 1) &^ (page - 1)
		end := was + 16*page
		require.Equal(t, end, brk(end))
		all := hca.Range{Addr: uint64(was), Len: 16 * pageSize}
		require.Empty(t, during(t, m, all, func() { require.Equal(t, end+page, brk(end+page)) }), "growing")
		require.Equal(t, end, brk(end))
		kept(t, m, all)
		require.Equal(t, unmapped(part(all, 4, 12)), during(t, m, all, func() { require.Equal(t, was+4*page, brk(was+4*page)) }))
		kept(t, m, part(all, 0, 4))
	})
}

func TestSees_MremapMove(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a, to := memory(t, 2), memory(t, 2)
		event := during(t, m, a, func() { mremap(t, a, a.Len, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, to.Addr) })
		require.Equal(t, []hca.Event{{Range: a, Cause: hca.CauseRemap}}, event)
		kept(t, m, to)
	})
}

func TestSees_MremapOnto(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a, to := memory(t, 2), memory(t, 2)
		require.Equal(t, unmapped(to), during(t, m, to, func() { mremap(t, a, a.Len, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, to.Addr) }))
	})
}

func TestSees_MremapShrink(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a := memory(t, 4)
		require.Equal(t, unmapped(part(a, 2, 2)), during(t, m, a, func() { mremap(t, a, 2*pageSize, 0, 0) }))
	})
}

func TestSees_MremapGrow(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a := memory(t, 4)
		munmap(t, part(a, 2, 2))
		a = part(a, 0, 2)
		require.Empty(t, during(t, m, a, func() { mremap(t, a, 3*pageSize, 0, 0) }), "in place")
		a.Len = 3 * pageSize
		events := during(t, m, a, func() { a.Addr = mremap(t, a, 64*pageSize, unix.MREMAP_MAYMOVE, 0) })
		require.Len(t, events, 1)
		require.Equal(t, hca.CauseRemap, events[0].Cause)
	})
}

func TestSees_MremapDontUnmap(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a := memory(t, 2)
		event := during(t, m, a, func() { mremap(t, a, a.Len, unix.MREMAP_MAYMOVE|unix.MREMAP_DONTUNMAP, 0) })
		require.Equal(t, []hca.Event{{Range: a, Cause: hca.CauseRemap}}, event)
		require.Zero(t, peek(a.Addr), "it stays, empty")
	})
}

func TestSees_Madvise(t *testing.T) {
	for name, advice := range map[string]int{
		"Dontneed": unix.MADV_DONTNEED, "DontneedLocked": unix.MADV_DONTNEED_LOCKED, "Free": unix.MADV_FREE, "GuardInstall": unix.MADV_GUARD_INSTALL,
	} {
		t.Run(name, func(t *testing.T) {
			inChild(t, func(t *testing.T, m *intercept.Monitor) {
				a := memory(t, 3)
				var err error
				events := during(t, m, a, func() { err = unix.Madvise(bytesOf(part(a, 1, 1)), advice) })
				if err == unix.EINVAL && advice == unix.MADV_GUARD_INSTALL {
					t.Skip("this kernel has no MADV_GUARD_INSTALL (Linux 6.13)")
				}
				require.NoError(t, err)
				require.Equal(t, discarded(part(a, 1, 1)), events)
				kept(t, m, a) // it is over, and that is known
			})
		})
	}
}

func TestSees_MadviseHarmless(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a := memory(t, 2)
		require.Empty(t, during(t, m, a, func() {
			for _, advice := range []int{unix.MADV_PAGEOUT, unix.MADV_COLD, unix.MADV_WILLNEED, unix.MADV_POPULATE_WRITE, unix.MADV_DONTFORK} {
				require.NoError(t, unix.Madvise(bytesOf(a), advice))
			}
		}))
		require.Equal(t, byte(0xa5), peek(a.Addr), "nothing is lost by it")
	})
}

// whole is the event of what may have changed anything.
func whole(c hca.Cause) []hca.Event { return []hca.Event{{Range: hca.Whole, Cause: c}} }

// file maps a memfd and returns it with the file.
func file(t *testing.T) (hca.Range, int) {
	fd := memfd(t, 4)
	a := area(t, 4)
	mapAt(t, a, anyFile, fd)
	return a, fd
}

// watchedFile is file for a monitor that has been asked about it. From then on what
// changes any file is an event.
func watchedFile(t *testing.T, m *intercept.Monitor) (hca.Range, int) {
	a, fd := file(t)
	kept(t, m, a)
	return a, fd
}

func TestSees_RemoveThroughOtherMapping(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a, fd := file(t)
		other := hca.Range{Addr: mmap(t, 0, a.Len, rw, unix.MAP_SHARED, fd), Len: a.Len}
		require.Equal(t, whole(hca.CauseDiscard), during(t, m, a, func() { require.NoError(t, unix.Madvise(bytesOf(other), unix.MADV_REMOVE)) }))
		require.Zero(t, peek(a.Addr), "the page went")
	})
}

func TestSees_Truncate(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a, fd := watchedFile(t, m)
		require.Equal(t, whole(hca.CauseDiscard), during(t, m, a, func() { require.NoError(t, unix.Ftruncate(fd, 0)) }))
		require.NoError(t, unix.Ftruncate(fd, int64(a.Len)))
		require.Zero(t, peek(a.Addr), "the page went")
		kept(t, m, a)
	})
}

// As long as nobody has asked about memory of a file, what is done to files takes
// nothing away that is kept: new files are made that way all the time.
func TestSees_TruncateUnwatched(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a, fd := file(t)
		kept(t, m, memory(t, 1)) // that is no file
		name := filepath.Join(t.TempDir(), "file")
		everything := func() {
			for _, way := range waysToCut(t, fd, name) {
				require.NoError(t, way.do(), way.name)
				require.NoError(t, unix.Ftruncate(fd, int64(a.Len)))
			}
		}
		require.Empty(t, during(t, m, a, everything))
		kept(t, m, a)
		require.NotEmpty(t, during(t, m, a, everything))
	})
}

// Whichever file it is: which one the descriptor or the name will stand for when the
// call acts is not known at its entry.
func TestSees_FilesCut(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a, _ := watchedFile(t, m)
		fd := memfd(t, 4)
		for _, way := range waysToCut(t, fd, filepath.Join(t.TempDir(), "file")) {
			require.NoError(t, unix.Ftruncate(fd, int64(4*pageSize)))
			require.Equal(t, whole(hca.CauseDiscard), during(t, m, a, func() { require.NoError(t, way.do()) }), way.name)
			kept(t, m, a)
		}
		require.Empty(t, during(t, m, a, func() {
			require.NoError(t, unix.Fallocate(fd, 0, 0, int64(4*pageSize)), "making room")
			f, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
			require.NoError(t, err)
			require.NoError(t, unix.Close(f))
		}))
	})
}

// A private mapping of it counts.
func TestSees_TruncatePrivate(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		fd := memfd(t, 1)
		a := area(t, 1)
		mapAt(t, a, unix.MAP_PRIVATE, fd)
		kept(t, m, a)
		require.Equal(t, whole(hca.CauseDiscard), during(t, m, a, func() { require.NoError(t, unix.Ftruncate(fd, 0)) }))
	})
}

func TestSees_HolePunch(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a, fd := watchedFile(t, m)
		require.Equal(t, whole(hca.CauseDiscard), during(t, m, a, func() {
			require.NoError(t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(pageSize)))
		}))
		require.Zero(t, peek(a.Addr), "the page went")
		require.Empty(t, during(t, m, a, func() { require.NoError(t, unix.Fallocate(fd, 0, 0, int64(a.Len))) }), "making room")
	})
}

// wayToCut is a system call that takes pages out of a file.
type wayToCut struct {
	name string
	do   func() error
}

// waysToCut are those for a file that is open, or that has a name and may be made.
func waysToCut(t *testing.T, fd int, name string) []wayToCut {
	require.NoError(t, os.WriteFile(name, make([]byte, pageSize), 0o600))
	reserve := struct { // struct space_resv, linux/falloc.h
		kind, whence int16
		start, len   int64
		_            [24]byte
	}{len: int64(pageSize)}
	ioctl := func(request uintptr) func() error {
		return func() error {
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(&reserve)))
			if errno != 0 {
				return errno
			}
			return nil
		}
	}
	ways := []wayToCut{
		{"ftruncate", func() error { return unix.Ftruncate(fd, 0) }},
		{"punch", func() error {
			return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(pageSize))
		}},
		{"truncate", func() error { return unix.Truncate(name, 0) }},
		{"openat", func() error {
			fd, err := unix.Openat(unix.AT_FDCWD, name, unix.O_RDWR|unix.O_TRUNC|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		}},
		{"openat2", func() error {
			how := unix.OpenHow{Flags: unix.O_RDWR | unix.O_TRUNC | unix.O_CLOEXEC}
			fd, err := unix.Openat2(unix.AT_FDCWD, name, &how)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		}},
		{"FS_IOC_UNRESVSP", ioctl(fsUnresv)},
		{"FS_IOC_UNRESVSP64", ioctl(fsUnresv64)},
	}
	switch handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, name, 0); err {
	case nil:
		ways = append(ways, wayToCut{"open_by_handle_at", func() error {
			dir, err := unix.Open(filepath.Dir(name), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(dir)
			fd, err := unix.OpenByHandleAt(dir, handle, unix.O_RDWR|unix.O_TRUNC|unix.O_CLOEXEC)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		}})
	default:
		t.Logf("without open_by_handle_at: %v", err)
	}
	return append(ways, oldWaysToCut(t, name)...)
}

func TestSees_ProcessMadvise(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a := memory(t, 2)
		pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
		require.NoError(t, err)
		defer unix.Close(pidfd)
		iov := unix.Iovec{Base: (*byte)(pointer(a.Addr)), Len: a.Len}
		var errno unix.Errno
		events := during(t, m, a, func() {
			_, _, errno = unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(pidfd), uintptr(unsafe.Pointer(&iov)), 1, unix.MADV_DONTNEED, 0, 0)
		})
		require.Equal(t, whole(hca.CauseDiscard), events, "announced, whether the kernel does it or not")
		if errno == unix.EINVAL {
			t.Skip("this kernel has no MADV_DONTNEED in process_madvise (Linux 6.13)")
		}
		require.Zero(t, errno)
		require.Zero(t, peek(a.Addr), "the page went")
	})
}

func TestSees_RemapFilePages(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a, _ := file(t)
		*(*byte)(pointer(a.Addr + pageSize)) = 0x77
		require.Equal(t, unmapped(part(a, 0, 1)), during(t, m, a, func() {
			_, _, errno := unix.Syscall6(unix.SYS_REMAP_FILE_PAGES, uintptr(a.Addr), uintptr(pageSize), 0, 1, 0, 0)
			require.Zero(t, errno)
		}))
		require.Equal(t, byte(0x77), peek(a.Addr), "the first page shows the second of the file")
	})
}

func TestSees_Shmdt(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		_, a := shm(t)
		kept(t, m, a)
		events := during(t, m, a, func() { require.NoError(t, unix.SysvShmDetach(bytesOf(a))) })
		require.Equal(t, unmapped(hca.Range{Addr: a.Addr, Len: top - a.Addr}), events, "how long it is nobody says beforehand")
		eventtest.NotMapped(t, watch(t, m, a).Why, a)
	})
}

func TestSees_ShmatRemap(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a := memory(t, 2)
		id, b := shm(t)
		*(*byte)(pointer(b.Addr)) = 0x77
		attach := func(flags uintptr) unix.Errno {
			_, _, errno := unix.Syscall(unix.SYS_SHMAT, uintptr(id), uintptr(a.Addr), flags)
			return errno
		}
		require.Empty(t, during(t, m, a, func() { require.NotZero(t, attach(0)) }), "refused, there is something")
		require.Equal(t, whole(hca.CauseUnmap), during(t, m, a, func() { require.Zero(t, attach(shmRemap)) }))
		require.Equal(t, byte(0x77), peek(a.Addr), "the segment lies over it")
	})
}

func TestSees_Mprotect(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a := memory(t, 3)
		one := part(a, 1, 1)
		require.Equal(t, []hca.Event{{Range: one, Cause: hca.CauseOwner}}, during(t, m, a, func() { require.NoError(t, unix.Mprotect(bytesOf(one), unix.PROT_READ)) }))
		require.Empty(t, during(t, m, a, func() { require.NoError(t, unix.Mprotect(bytesOf(one), rw)) }), "giving it back")
		kept(t, m, a)
	})
}

func TestSees_PkeyMprotect(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a := memory(t, 3)
		one := part(a, 1, 1)
		protect := func(prot uintptr) {
			const noKey = ^uintptr(0) // the same as mprotect
			_, _, errno := unix.Syscall6(unix.SYS_PKEY_MPROTECT, uintptr(one.Addr), uintptr(one.Len), prot, noKey, 0, 0)
			require.Zero(t, errno)
		}
		require.Equal(t, []hca.Event{{Range: one, Cause: hca.CauseOwner}}, during(t, m, a, func() { protect(unix.PROT_NONE) }))
		require.Empty(t, during(t, m, a, func() { protect(rw) }))
	})
}

// The runtime discards pages of the Go heap by raw madvise.
func TestSees_GoScavenger(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		block := make([]byte, 8<<20)
		for i := range block {
			block[i] = 1
		}
		r := hca.RangeOf(block)
		runtime.KeepAlive(block)
		block = nil
		var gone uint64
		for _, ev := range during(t, m, r, func() {
			runtime.GC()
			debug.FreeOSMemory()
		}) {
			if ev.Cause != hca.CauseDiscard {
				continue // the heap grows by mappings over what it had reserved
			}
			gone += min(ev.Range.End(), r.End()) - max(ev.Range.Addr, r.Addr)
		}
		require.Greater(t, gone, r.Len/2, "the dropped block was discarded and reported")
		// The scavenger may be at work in the background; then it is known when
		// it is done.
		require.Eventually(t, func() bool { return m.Watch(r).Kind == hca.MemOwned }, 10*time.Second, time.Millisecond)
	})
}

// What other processes do, a forked child with the same addresses too, is
// their own affair.
func TestDoesNotSee_OtherProcess(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a := memory(t, 1)
		require.Empty(t, during(t, m, a, func() {
			eventtest.ForkUnmap(t, a.Addr, a.Len)
		}))
		require.Equal(t, byte(0xa5), peek(a.Addr))
		kept(t, m, a)
	})
}

// Pages of one mapping are moved into another. The call is announced whether
// it can do anything or not; here it cannot, there is no descriptor.
func TestSees_UserfaultMove(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a := memory(t, 1)
		ioctl := func(cmd uintptr) unix.Errno {
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, ^uintptr(0), cmd, 0)
			return errno
		}
		require.Equal(t, whole(hca.CauseRemap), during(t, m, a, func() { require.Equal(t, unix.EBADF, ioctl(uffdMove)) }))
		require.Empty(t, during(t, m, a, func() { require.Equal(t, unix.EBADF, ioctl(uffdMove+1)) }))
		kept(t, m, a)
	})
}

// What is opened anew is cut by that.
func TestSees_OpenTruncate(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		f, err := os.CreateTemp(t.TempDir(), "")
		require.NoError(t, err)
		defer f.Close()
		require.NoError(t, f.Truncate(int64(pageSize)))
		a := area(t, 1)
		mapAt(t, a, anyFile, int(f.Fd()))
		kept(t, m, a)
		require.Equal(t, whole(hca.CauseDiscard), during(t, m, a, func() {
			g, err := os.OpenFile(f.Name(), os.O_RDWR|os.O_TRUNC, 0)
			require.NoError(t, err)
			require.NoError(t, g.Close())
		}))
		info, err := f.Stat()
		require.NoError(t, err)
		require.Zero(t, info.Size(), "the page stayed")
	})
}
