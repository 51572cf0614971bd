//go:build linux && cgo && (amd64 || arm64 || riscv64 || loong64)

package intercept

import (
	"runtime"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept/internal/eventtest"
)

// What userfaultfd reports, row by row of the table in docs. Each test does it
// by raw system calls, which know nothing of the monitor.

func TestSees_Munmap(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 8)
		watched(t, m, a)
		cut := func(r hca.Range) func() {
			return func() { require.NoError(t, rawMunmap(r.Addr, uintptr(r.Len))) }
		}
		require.Equal(t, []hca.Event{unmapEvent(part(a, 3, 2))}, during(t, m, cut(part(a, 3, 2))), "the middle")
		// The range of the call, beyond what was watched, and once although
		// two watched pieces are in it.
		wide := hca.Range{Addr: a.Addr - pageSize, Len: a.Len + 2*pageSize}
		require.Equal(t, []hca.Event{unmapEvent(wide)}, during(t, m, cut(wide)), "more than all of it")
		eventtest.NotMapped(t, m.Watch(a).Why, a)
	})
}

func TestSees_MapFixedOver(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 4)
		watched(t, m, a)
		half := part(a, 2, 2)
		require.Equal(t, []hca.Event{unmapEvent(half)}, during(t, m, func() { mapAt(t, half, private, -1) }))
		watched(t, m, a)
	})
}

func TestSees_BrkShrink(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		brk := func(to uintptr) uintptr {
			now, _, _ := unix.RawSyscall(unix.SYS_BRK, to, 0, 0)
			return now
		}
		was := brk(0)
		end := was + 16*uintptr(pageSize)
		require.Equal(t, end, brk(end))
		whole := hca.Range{Addr: uint64(was), Len: 16 * pageSize}.Pages(pageSize)
		inside := part(whole, 4, 8)
		watched(t, m, inside)
		require.Empty(t, during(t, m, func() { require.Equal(t, end+uintptr(pageSize), brk(end+uintptr(pageSize))) }), "growing")
		require.Equal(t, end, brk(end))
		events := during(t, m, func() { require.Equal(t, was, brk(was)) })
		require.Len(t, events, 1)
		require.Equal(t, hca.CauseUnmap, events[0].Cause)
		require.True(t, events[0].Range.Contains(inside), "%v", events[0].Range)
	})
}

func TestSees_MremapMove(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a, to := memory(t, 2), area(t, 2)
		watched(t, m, a)
		move := func() {
			_, err := rawMremap(a.Addr, uintptr(a.Len), uintptr(a.Len), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, to.Addr)
			require.NoError(t, err)
		}
		require.Equal(t, []hca.Event{remapEvent(a), unmapEvent(a)}, during(t, m, move))
		// The watch moved along.
		eventtest.NotMapped(t, m.Watch(a).Why, a)
		require.Equal(t, []hca.Event{unmapEvent(to)}, during(t, m, func() { require.NoError(t, rawMunmap(to.Addr, uintptr(to.Len))) }))
	})
}

func TestSees_MremapOnto(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a, b := memory(t, 2), memory(t, 2)
		watched(t, m, b)
		onto := func() {
			_, err := rawMremap(a.Addr, uintptr(a.Len), uintptr(a.Len), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, b.Addr)
			require.NoError(t, err)
		}
		require.Equal(t, []hca.Event{unmapEvent(b)}, during(t, m, onto))
	})
}

func TestSees_MremapShrink(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 4)
		watched(t, m, a)
		shrink := func() {
			_, err := rawMremap(a.Addr, uintptr(a.Len), uintptr(pageSize), 0, 0)
			require.NoError(t, err)
		}
		require.Equal(t, []hca.Event{unmapEvent(part(a, 1, 3))}, during(t, m, shrink))
	})
}

// Shrunk and moved in one call: the tail goes first.
func TestSees_MremapShrinkAndMove(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a, to := memory(t, 4), area(t, 4)
		watched(t, m, a)
		events := during(t, m, func() {
			_, err := rawMremap(a.Addr, uintptr(a.Len), uintptr(pageSize), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, to.Addr)
			require.NoError(t, err)
		})
		require.Contains(t, events, unmapEvent(part(a, 1, 3)))
		require.Contains(t, events, remapEvent(part(a, 0, 1)))
		eventtest.NotMapped(t, m.Watch(part(a, 0, 1)).Why, part(a, 0, 1))
		eventtest.NotMapped(t, m.Watch(part(a, 3, 1)).Why, part(a, 3, 1))
		require.True(t, armed(t, part(to, 0, 1)), "the watch moved along")
	})
}

func TestSees_MremapGrow(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		space := area(t, 8)
		a := part(space, 0, 2)
		mapAt(t, a, private, -1)
		require.NoError(t, rawMunmap(part(space, 2, 1).Addr, uintptr(pageSize)))
		watched(t, m, a)
		grow := func(from, to int) func() {
			return func() {
				at, err := rawMremap(a.Addr, uintptr(from)*uintptr(pageSize), uintptr(to)*uintptr(pageSize), unix.MREMAP_MAYMOVE, 0)
				require.NoError(t, err)
				a.Addr = at
			}
		}
		// In place: nothing went away, and the new page is watched like the rest.
		require.Empty(t, during(t, m, grow(2, 3)))
		require.Equal(t, space.Addr, a.Addr)
		tail := part(a, 2, 1)
		require.Equal(t, []hca.Event{discardEvent(tail)}, during(t, m, func() {
			require.NoError(t, rawMadvise(tail.Addr, uintptr(tail.Len), unix.MADV_DONTNEED))
		}))
		// With a move.
		old := part(a, 0, 3)
		require.Equal(t, []hca.Event{remapEvent(old), unmapEvent(old)}, during(t, m, grow(3, 64)))
		require.NotEqual(t, space.Addr, a.Addr)
	})
}

func TestSees_MremapDontUnmap(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 2)
		watched(t, m, a)
		require.Equal(t, []hca.Event{remapEvent(a)}, during(t, m, func() {
			_, err := rawMremap(a.Addr, uintptr(a.Len), uintptr(a.Len), unix.MREMAP_MAYMOVE|unix.MREMAP_DONTUNMAP, 0)
			require.NoError(t, err)
		}))
		require.Zero(t, peek(a.Addr), "the pages stayed")
		watched(t, m, a) // the old mapping is there and watched
	})
}

// discard does a discarding advice on the middle of watched memory.
func discard(t *testing.T, flags, fd, advice int) {
	inChild(t, func(t *testing.T, m *Monitor) {
		if fd >= 0 {
			fd = memfd(t, 6)
		}
		a := part(area(t, 8), 1, 6)
		mapAt(t, a, flags, fd)
		watched(t, m, a)
		middle := part(a, 2, 2)
		require.Equal(t, []hca.Event{discardEvent(middle)}, during(t, m, func() {
			require.NoError(t, rawMadvise(middle.Addr, uintptr(middle.Len), advice))
		}))
		require.Equal(t, hca.UnkeptDiscardSeen, m.Watch(a).Why)
		watched(t, m, part(a, 0, 2))
	})
}

func TestSees_MadviseDontneed(t *testing.T) { discard(t, private, -1, unix.MADV_DONTNEED) }
func TestSees_MadviseDontneedLocked(t *testing.T) {
	discard(t, private, -1, unix.MADV_DONTNEED_LOCKED)
}
func TestSees_MadviseFree(t *testing.T)   { discard(t, private, -1, unix.MADV_FREE) }
func TestSees_MadviseRemove(t *testing.T) { discard(t, unix.MAP_SHARED, 0, unix.MADV_REMOVE) }

func TestSees_ProcessMadvise(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 2)
		watched(t, m, a)
		pid, err := unix.PidfdOpen(unix.Getpid(), 0)
		require.NoError(t, err)
		defer unix.Close(pid)
		iov := unix.Iovec{Base: (*byte)(pointer(a.Addr)), Len: a.Len}
		var errno unix.Errno
		events := during(t, m, func() {
			_, _, errno = unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(pid), uintptr(unsafe.Pointer(&iov)), 1, unix.MADV_DONTNEED, 0, 0)
		})
		if errno == unix.EINVAL {
			t.Skip("this kernel does not take MADV_DONTNEED through process_madvise (Linux 6.13)")
		}
		require.Zero(t, errno)
		require.Equal(t, []hca.Event{discardEvent(a)}, events)
	})
}

// io_uring does the advice for who asks, in a thread of the kernel or in his own.
func TestSees_UringMadvise(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		u := eventtest.NewUring(t)
		a := memory(t, 4)
		watched(t, m, a)
		one := part(a, 1, 1)
		const opMadvise = 25 // IORING_OP_MADVISE, linux/io_uring.h
		events := during(t, m, func() {
			u.Start(t, opMadvise, 0, -1, 0, one.Addr, uint32(one.Len), unix.MADV_DONTNEED)
			require.Zero(t, u.End(t))
		})
		require.Equal(t, []hca.Event{discardEvent(one)}, events)
		require.Zero(t, peek(one.Addr), "the page stayed")
	})
}

// Memory that is discarded over several mappings is reported mapping by mapping.
func TestSees_DiscardOverMappings(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 4)
		require.NoError(t, unix.Mprotect(unsafe.Slice((*byte)(pointer(a.Addr)), 2*pageSize), unix.PROT_READ))
		watched(t, m, a)
		require.Equal(t, []hca.Event{discardEvent(part(a, 0, 2)), discardEvent(part(a, 2, 2))}, during(t, m, func() {
			require.NoError(t, rawMadvise(a.Addr, uintptr(a.Len), unix.MADV_DONTNEED))
		}))
	})
}

// The kinds of memory: what can be watched, and its munmap is reported.
func TestSees_EveryKindOfMapping(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		file := t.TempDir() + "/file"
		fd, err := unix.Open(file, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		require.NoError(t, err)
		defer unix.Close(fd)
		require.NoError(t, unix.Ftruncate(fd, int64(2*pageSize)))
		for _, k := range []struct {
			name      string
			flags, fd int
		}{
			{"private anonymous", private, -1},
			{"shared anonymous", shared, -1},
			{"memfd", unix.MAP_SHARED, memfd(t, 2)},
			{"memfd, private", unix.MAP_PRIVATE, memfd(t, 2)},
			{"file", unix.MAP_SHARED, fd},
			{"file, private", unix.MAP_PRIVATE, fd},
		} {
			a := area(t, 2)
			mapAt(t, a, k.flags, k.fd)
			watched(t, m, a)
			require.Equal(t, []hca.Event{unmapEvent(a)}, during(t, m, func() {
				require.NoError(t, rawMunmap(a.Addr, uintptr(a.Len)))
			}), k.name)
		}
		// System V shared memory, taken away by munmap (shmdt is another row).
		id, err := unix.SysvShmGet(unix.IPC_PRIVATE, int(2*pageSize), unix.IPC_CREAT|0o600)
		require.NoError(t, err)
		b, err := unix.SysvShmAttach(id, 0, 0)
		require.NoError(t, err)
		_, err = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
		require.NoError(t, err)
		a := hca.RangeOf(b)
		watched(t, m, a)
		require.Equal(t, []hca.Event{unmapEvent(a)}, during(t, m, func() {
			require.NoError(t, rawMunmap(a.Addr, uintptr(a.Len)))
		}), "System V shared memory")
	})
}

// The runtime discards pages of the Go heap by raw madvise.
func TestSees_GoScavenger(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		block := make([]byte, 8<<20)
		for i := range block {
			block[i] = 1
		}
		r := hca.RangeOf(block)
		watched(t, m, r)
		runtime.KeepAlive(block)
		block = nil
		events := during(t, m, func() {
			runtime.GC()
			debug.FreeOSMemory()
		})
		var gone uint64
		for _, ev := range events {
			require.Equal(t, hca.CauseDiscard, ev.Cause)
			if lo, hi := max(ev.Range.Addr, r.Addr), min(ev.Range.End(), r.End()); lo < hi {
				gone += hi - lo
			}
		}
		// All but what the heap had given out again in between.
		require.Greater(t, gone, r.Len/2, "the dropped block was discarded and reported")
		require.Equal(t, hca.UnkeptDiscardSeen, m.Watch(r).Why)
	})
}
