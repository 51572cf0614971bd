package eventtest

import (
	"encoding/binary"
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Uring is the least of an io_uring: one request at a time. It is used by a thread
// of its own: the kernel's workers belong to the thread that handed a request in,
// and may stay until that ends.
type Uring struct {
	work       chan func()
	fd         int
	ring, sqes []byte
	params     [120]byte
}

func (u *Uring) param(at int) uint32 { return binary.NativeEndian.Uint32(u.params[at:]) }

func (u *Uring) word(at uint32) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&u.ring[at])) }

// NewUring makes one; it skips the test where there is no io_uring.
func NewUring(t testing.TB) *Uring {
	t.Helper()
	u := &Uring{work: make(chan func())}
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(&u.params)), 0)
	if errno != 0 {
		t.Skipf("no io_uring here: %v", errno)
	}
	u.fd = int(fd)
	t.Cleanup(func() { require.NoError(t, unix.Close(u.fd)) })
	var err error
	u.ring, err = unix.Mmap(u.fd, 0, 4096, RW, unix.MAP_SHARED|unix.MAP_POPULATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(u.ring)) })
	u.sqes, err = unix.Mmap(u.fd, 0x10000000, 4096, RW, unix.MAP_SHARED|unix.MAP_POPULATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(u.sqes)) })
	ended := make(chan struct{})
	go func() { defer close(ended); u.serve() }()
	t.Cleanup(func() { close(u.work); <-ended })
	return u
}

// serve does what is asked for on a thread that ends with it.
func (u *Uring) serve() {
	runtime.LockOSThread() // never unlocked, or else it would not end
	if unix.Gettid() == unix.Getpid() {
		// The first thread of a process does not end before all.
		next := make(chan struct{})
		go func() { defer close(next); u.serve() }()
		<-next
		runtime.UnlockOSThread()
		return
	}
	for do := range u.work {
		do()
	}
}

// enter is io_uring_enter, on the thread for it.
func (u *Uring) enter(submit, complete, flags uintptr) (n uintptr, errno unix.Errno) {
	done := make(chan struct{})
	u.work <- func() {
		n, _, errno = unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(u.fd), submit, complete, flags, 0, 0)
		close(done)
	}
	<-done
	return n, errno
}

// Start hands in one request.
func (u *Uring) Start(t testing.TB, opcode, flags byte, fd int32, off, addr uint64, length, advice uint32) {
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
	n, errno := u.enter(1, 0, 0)
	require.Zero(t, errno)
	require.EqualValues(t, 1, n)
}

// End waits for the completion of the last request and gives its result.
func (u *Uring) End(t testing.TB) int32 {
	t.Helper()
	_, errno := u.enter(0, 1, 1) // IORING_ENTER_GETEVENTS
	require.Zero(t, errno)
	const cqHead, cqMask, cqes = 80, 80 + 8, 80 + 20
	head := u.word(u.param(cqHead))
	at := head.Load()
	res := u.word(u.param(cqes) + 16*(at&u.word(u.param(cqMask)).Load()) + 8).Load()
	head.Store(at + 1)
	return int32(res)
}
