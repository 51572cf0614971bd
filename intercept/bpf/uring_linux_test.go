//go:build linux && (amd64 || arm64)

package bpf

import (
	"encoding/binary"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
)

// uring is the least of an io_uring: one request at a time.
type uring struct {
	fd         int
	ring, sqes []byte
	params     [120]byte
}

func (u *uring) param(at int) uint32 { return binary.NativeEndian.Uint32(u.params[at:]) }

func (u *uring) word(at uint32) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&u.ring[at])) }

func newUring(t *testing.T) *uring {
	t.Helper()
	u := &uring{}
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(&u.params)), 0)
	if errno != 0 {
		t.Skipf("no io_uring here: %v", errno)
	}
	u.fd = int(fd)
	t.Cleanup(func() { require.NoError(t, unix.Close(u.fd)) })
	var err error
	u.ring, err = unix.Mmap(u.fd, 0, 4096, rw, unix.MAP_SHARED|unix.MAP_POPULATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(u.ring)) })
	u.sqes, err = unix.Mmap(u.fd, 0x10000000, 4096, rw, unix.MAP_SHARED|unix.MAP_POPULATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(u.sqes)) })
	return u
}

// start hands in one request; end waits for its completion and gives the
// result.
func (u *uring) start(t *testing.T, opcode, flags byte, fd int32, off, addr uint64, length, advice uint32) {
	t.Helper()
	sqe := u.sqes[:64]
	clear(sqe)
	sqe[0], sqe[1] = opcode, flags
	binary.NativeEndian.PutUint32(sqe[4:], uint32(fd))
	binary.NativeEndian.PutUint64(sqe[8:], off)
	binary.NativeEndian.PutUint64(sqe[16:], addr)
	binary.NativeEndian.PutUint32(sqe[24:], length)
	binary.NativeEndian.PutUint32(sqe[28:], advice)
	const sqTail, sqMask, sqArray = 40 + 4, 40 + 8, 40 + 24
	tail := u.word(u.param(sqTail))
	at := tail.Load()
	u.word(u.param(sqArray) + 4*(at&u.word(u.param(sqMask)).Load())).Store(0)
	tail.Store(at + 1)
	n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(u.fd), 1, 0, 0, 0, 0)
	require.Zero(t, errno)
	require.EqualValues(t, 1, n)
}

func (u *uring) end(t *testing.T) int32 {
	t.Helper()
	_, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(u.fd), 0, 1, 1, 0, 0) // IORING_ENTER_GETEVENTS
	require.Zero(t, errno)
	const cqHead, cqMask, cqes = 80, 80 + 8, 80 + 20
	head := u.word(u.param(cqHead))
	at := head.Load()
	res := u.word(u.param(cqes) + 16*(at&u.word(u.param(cqMask)).Load()) + 8).Load()
	head.Store(at + 1)
	return int32(res)
}

func TestSees_Uring(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		u := newUring(t)
		a := memory(t, 4)
		one := part(a, 1, 1)
		events := during(t, m, a, func() {
			u.start(t, opMadvise, 0, -1, 0, one.Addr, uint32(one.Len), unix.MADV_DONTNEED)
			require.Zero(t, u.end(t))
		})
		require.Equal(t, discarded(one), slices.Compact(events), "each copy of the program announces it")
		require.Zero(t, peek(one.Addr), "the page went")
		kept(t, m, a)
		require.Empty(t, during(t, m, a, func() {
			u.start(t, opMadvise, 0, -1, 0, one.Addr, uint32(one.Len), unix.MADV_WILLNEED)
			require.Zero(t, u.end(t))
		}))

		f, fd := file(t)
		events = during(t, m, f, func() {
			u.start(t, opFallocate, 0, int32(fd), 0, pageSize, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0)
			require.Zero(t, u.end(t))
		})
		require.Equal(t, whole(hca.CauseDiscard), slices.Compact(events))
		require.Zero(t, peek(f.Addr), "the page went")
		kept(t, m, f)

		require.Equal(t, whole(hca.CauseDiscard), slices.Compact(during(t, m, f, func() {
			u.start(t, opFtruncate, 0, int32(fd), 0, 0, 0, 0)
			if res := u.end(t); res != 0 {
				require.Equal(t, -int32(unix.EINVAL), res, "before Linux 6.9 there is none")
			}
		})))
		kept(t, m, f)
	})
}

// A worker of io_uring that stands in the kernel is an operation under way,
// until its request is completed.
func TestUnderWay_Uring(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		u, g := newUring(t), newGate(t)
		a, other := memory(t, 1), memory(t, 1)
		g.over(t, a)
		u.start(t, opMadvise, 0, -1, 0, a.Addr, uint32(a.Len), unix.MADV_DONTNEED)
		g.held(t)
		require.Equal(t, byte(0xa5), peek(a.Addr))
		require.Equal(t, hca.UnkeptUnsettled, m.Watch(a).Why)
		kept(t, m, other)
		g.let(t)
		require.Zero(t, u.end(t))
		kept(t, m, a)
	})
}

// A request that asks for no completion: nobody tells when it is done, so
// nothing is kept from then on, and the monitor says so.
func TestUringWithoutCompletion(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		u := newUring(t)
		a, other := memory(t, 1), memory(t, 1)
		require.Equal(t, discarded(a), slices.Compact(during(t, m, a, func() {
			u.start(t, opMadvise, cqeSkip, -1, 0, a.Addr, uint32(a.Len), unix.MADV_DONTNEED)
		})))
		require.Equal(t, hca.UnkeptUnsettled, m.Watch(other).Why)
		require.Contains(t, m.String(), "BROKEN")
	})
}
