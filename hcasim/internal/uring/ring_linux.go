package uring

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrTooOld: the kernel has io_uring but not all that is needed of it.
var ErrTooOld = errors.New("io_uring without sparse buffer tables (needs Linux 5.19)")

// MaxBuffers is the size of the largest table of buffers (IORING_MAX_REG_BUFFERS
// in io_uring/rsrc.c), and MaxBuffer the bytes of the largest buffer (the same
// file, io_buffer_validate).
const (
	MaxBuffers = 1 << 14
	MaxBuffer  = 1 << 30
)

// Ring is one io_uring.
type Ring struct {
	fd int

	rings []byte // both rings: IORING_FEAT_SINGLE_MMAP
	sqMem []byte

	// What lies in the rings. The kernel moves sqHead and cqTail.
	sqTail         *atomic.Uint32
	sqMask         uint32
	cqHead, cqTail *atomic.Uint32
	cqMask         uint32
	sqes           []sqe
	cqes           []cqe

	updates sync.Pool // of *update
}

// Open makes a ring for up to entries operations at once (a power of two, at
// most 4096) with a table of the given number of empty buffer slots. Errors
// are the kernel's: EPERM where io_uring is forbidden, ENOSYS where there is
// none; or ErrTooOld.
func Open(entries uint32, buffers int) (*Ring, error) {
	var p params
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		return nil, os.NewSyscallError("io_uring_setup", errno)
	}
	r := &Ring{fd: int(fd), updates: sync.Pool{New: func() any { return new(update) }}}
	if err := r.open(&p, buffers); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Ring) open(p *params, buffers int) error {
	const need = featSingleMmap | featNoDrop | featRsrcTags
	if p.features&need != need {
		return ErrTooOld
	}
	size := max(p.sqOff.array+4*p.sqEntries, p.cqOff.cqes+uint32(unsafe.Sizeof(cqe{}))*p.cqEntries)
	var err error
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	if r.rings, err = unix.Mmap(r.fd, offSQRing, int(size), prot, flags); err != nil {
		return os.NewSyscallError("mmap of the rings", err)
	}
	if r.sqMem, err = unix.Mmap(r.fd, offSQEs, int(p.sqEntries)*int(unsafe.Sizeof(sqe{})), prot, flags); err != nil {
		return os.NewSyscallError("mmap of the submissions", err)
	}
	at := func(off uint32) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&r.rings[off])) }
	r.sqTail, r.sqMask = at(p.sqOff.tail), at(p.sqOff.ringMask).Load()
	r.cqHead, r.cqTail, r.cqMask = at(p.cqOff.head), at(p.cqOff.tail), at(p.cqOff.ringMask).Load()
	r.sqes = unsafe.Slice((*sqe)(unsafe.Pointer(&r.sqMem[0])), p.sqEntries)
	r.cqes = unsafe.Slice((*cqe)(unsafe.Pointer(&r.rings[p.cqOff.cqes])), p.cqEntries)
	// The array between ring and submissions stays the identity for ever.
	for i := range p.sqEntries {
		at(p.sqOff.array + 4*i).Store(i)
	}
	reg := rsrcRegister{nr: uint32(buffers), flags: rsrcRegisterSparse}
	switch err := r.register(registerBuffers2, unsafe.Pointer(&reg), unsafe.Sizeof(reg)); {
	case errors.Is(err, unix.EINVAL):
		return ErrTooOld
	case err != nil:
		return fmt.Errorf("table of %d buffers: %w", buffers, err)
	}
	return nil
}

func (r *Ring) register(op uintptr, arg unsafe.Pointer, n uintptr) error {
	for {
		_, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), op, uintptr(arg), n, 0, 0)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

// UpdateBuffer puts the memory at addr, n bytes, into the slot, or empties the
// slot if n is 0. What was in the slot is unpinned; a transfer under way keeps
// its pages until it is done. The error is the kernel's errno, bare: ENOMEM
// (RLIMIT_MEMLOCK, or memory), EFAULT (not mapped, or not for writing),
// EOPNOTSUPP (memory that cannot be pinned).
func (r *Ring) UpdateBuffer(slot uint32, addr, n uint64) error {
	u := r.updates.Get().(*update)
	defer r.updates.Put(u)
	u.iov = iovec{}
	if n != 0 {
		u.iov = iovec{base: addr, len: n}
	}
	u.args = rsrcUpdate2{offset: slot, nr: 1,
		data: uint64(uintptr(unsafe.Pointer(&u.iov))), tags: uint64(uintptr(unsafe.Pointer(&u.tag)))}
	return r.register(registerBuffersUpdate, unsafe.Pointer(&u.args), unsafe.Sizeof(u.args))
}

// update is the argument of one UpdateBuffer. It holds its own address as a
// number, so it must lie on the heap: a stack may move.
type update struct {
	args rsrcUpdate2
	iov  iovec
	tag  uint64
}

// Close gives the ring back, and with it every buffer that is registered.
func (r *Ring) Close() error {
	var errs []error
	for _, m := range [][]byte{r.sqMem, r.rings} {
		if m != nil {
			errs = append(errs, os.NewSyscallError("munmap", unix.Munmap(m)))
		}
	}
	errs = append(errs, os.NewSyscallError("close", unix.Close(r.fd)))
	r.sqMem, r.rings, r.fd = nil, nil, -1
	return errors.Join(errs...)
}
