package hcasim

import (
	"errors"
	"unsafe"

	"example.com/holdfast/hca"
	"golang.org/x/sys/unix"
)

func madvise(r hca.Range, advice int) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(r.Addr), uintptr(r.Len), uintptr(advice))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

// hasPopulate asks the kernel with a range of no bytes, which does nothing but
// is refused where the advice is not known.
func hasPopulate() bool { return madvise(hca.Range{}, unix.MADV_POPULATE_READ) == nil }

// populate makes whole pages ready. What cannot be is said in the words of
// ibv_advise_mr(3).
func populate(r hca.Range, advice hca.Advice) error {
	var err error
	switch advice {
	case hca.Prefetch:
		err = madvise(r, unix.MADV_POPULATE_READ)
	case hca.PrefetchWrite:
		err = madvise(r, unix.MADV_POPULATE_WRITE)
	default:
		err = present(r)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EFAULT), errors.Is(err, unix.EHWPOISON):
		return &hca.OpError{Detail: "part of it is not mapped or cannot be read in: " + err.Error(), Err: hca.ErrBadAddress}
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return &hca.OpError{Detail: "the memory's protection forbids it", Err: hca.ErrAccess}
	case errors.Is(err, unix.EAGAIN):
		return &hca.OpError{Err: hca.ErrAgain}
	}
	return err
}

// present looks which pages are in memory without bringing any in. There is
// nothing to do for those: the adapter goes through the same page table. What
// is left of the advice is its error, for memory that is not mapped.
func present(r hca.Range) error {
	const step = 4096 // pages in one call
	var vec [step]byte
	page := uint64(unix.Getpagesize())
	for r.Len > 0 {
		n := min(r.Len, step*page)
		_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(r.Addr), uintptr(n), uintptr(unsafe.Pointer(&vec[0])))
		if errno != 0 {
			return errno
		}
		r.Addr, r.Len = r.Addr+n, r.Len-n
	}
	return nil
}
