package hcasim

import (
	"errors"
	"os"
	"sync"
	"unsafe"

	"example.com/holdfast/hca"
	"golang.org/x/sys/unix"
)

// lesserHost is the form for machines that forbid io_uring. Pinned is what
// mlock keeps in memory, and process_vm_readv on the own process moves bytes:
// it faults pages in and answers EFAULT instead of crashing, but goes by
// address. So a stale registration uses whatever is mapped there now, and
// nothing of the danger that the cache is there for can be shown.
//
// Two things mlock does to a program: locks do not nest, so a lock that the
// program itself took on the same pages ends with the registration; and
// madvise(MADV_DONTNEED) fails with EINVAL on locked pages.
type lesserHost struct {
	form string
	pid  uintptr
	page uint64
	// populates says that the kernel has MADV_POPULATE_READ and _WRITE.
	populates bool

	bytes [2]byte // on the heap, which does not move as a stack does

	mu    sync.Mutex
	locks map[uint64]uint32 // page address: registrations in this fabric that hold it
}

func newLesserHost(why string) (host, error) {
	h := &lesserHost{
		form: "mlock and process_vm_readv (lesser form, without stale pages: " + why + ")",
		pid:  uintptr(os.Getpid()),
		page: uint64(unix.Getpagesize()),

		populates: hasPopulate(),

		locks: map[uint64]uint32{},
	}
	if n, err := h.readv(h.scratch(0), h.scratch(1), 1); n != 1 {
		return nil, &hca.OpError{Op: "open fabric", Detail: "io_uring: " + why + "; process_vm_readv on the own process: " + err.Error(),
			Err: hca.ErrNotSupported, Hint: "allow one of them"}
	}
	return h, nil
}

// scratch is the address of a byte of the host's own. Its content means
// nothing.
func (h *lesserHost) scratch(i int) uint64 { return uint64(uintptr(unsafe.Pointer(&h.bytes[i]))) }

func (h *lesserHost) describe(a *hca.Attr) {
	describeMemory(a)
	a.Form = h.form
	a.Lesser = true
}

func (h *lesserHost) pin(_ uint32, r hca.Range, a hca.Access) error {
	pages := r.Pages(h.page)
	if err := h.fault(pages, a.Writes()); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if errno := mlock(unix.SYS_MLOCK, pages); errno != 0 {
		// It may have locked part: what nobody else holds is let go again.
		_ = h.unlockFree(pages) // the memory can be gone, and the first error is what counts
		switch errno {
		case unix.ENOMEM, unix.EPERM: // EPERM: the limit is 0
			return noMemory("this process, which")
		case unix.EAGAIN:
			return &hca.OpError{Detail: "some pages could not be locked", Err: hca.ErrNoMemory}
		}
		return os.NewSyscallError("mlock", errno)
	}
	for p := pages.Addr; p < pages.End(); p += h.page {
		h.locks[p]++
	}
	return nil
}

// fault brings whole pages in, for writing if that is wanted, as pinning them
// would. mlock does not tell memory that is not there from a limit, and does
// not care for writing.
func (h *lesserHost) fault(pages hca.Range, writes bool) error {
	if !h.populates {
		return explainMemory(pages, writes, false)
	}
	advice := hca.Prefetch
	if writes {
		advice = hca.PrefetchWrite
	}
	err := populate(pages, advice)
	if err == nil || errors.Is(err, hca.ErrAgain) {
		return err
	}
	if e := explainMemory(pages, writes, false); e != nil {
		return e
	}
	return &hca.OpError{Detail: "the kernel cannot bring it in", Err: hca.ErrBadAddress,
		Hint: "does it lie behind the end of its file?"}
}

func (h *lesserHost) unpin(_ uint32, r hca.Range) error {
	pages := r.Pages(h.page)
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := pages.Addr; p < pages.End(); p += h.page {
		if h.locks[p]--; h.locks[p] == 0 {
			delete(h.locks, p)
		}
	}
	return h.unlockFree(pages)
}

// unlockFree unlocks the pages that no registration holds, run by run.
func (h *lesserHost) unlockFree(pages hca.Range) error {
	var errs []error
	for p := pages.Addr; p < pages.End(); {
		run := hca.Range{Addr: p}
		for p < pages.End() && h.locks[p] == 0 {
			p += h.page
			run.Len += h.page
		}
		if !run.Empty() {
			// ENOMEM: part of it is not mapped any more, and not locked either.
			if errno := mlock(unix.SYS_MUNLOCK, run); errno != 0 && errno != unix.ENOMEM {
				errs = append(errs, os.NewSyscallError("munlock", errno))
			}
		}
		for p < pages.End() && h.locks[p] != 0 {
			p += h.page
		}
	}
	return errors.Join(errs...)
}

func mlock(call uintptr, r hca.Range) unix.Errno {
	_, _, errno := unix.Syscall(call, uintptr(r.Addr), uintptr(r.Len), 0)
	return errno
}

// move copies in one step where it can. The system call stops short at a page
// that is not there and fails when that page comes first; whose page it was is
// found by reading one byte of the source.
func (h *lesserHost) move(dst, src span) side {
	for src.len > 0 {
		n, err := h.readv(dst.addr, src.addr, src.len)
		switch {
		case n > 0:
			src.addr, src.len = src.addr+n, src.len-n
			dst.addr += n
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EFAULT):
			return sideWire
		default:
			if n, _ := h.readv(h.scratch(0), src.addr, 1); n != 1 {
				return sideSource
			}
			return sideTarget
		}
	}
	return sideNone
}

type iovec struct{ base, len uint64 }

func (h *lesserHost) readv(dst, src, n uint64) (uint64, error) {
	local, remote := iovec{dst, n}, iovec{src, n}
	got, _, errno := unix.Syscall6(unix.SYS_PROCESS_VM_READV, h.pid, uintptr(unsafe.Pointer(&local)), 1,
		uintptr(unsafe.Pointer(&remote)), 1, 0)
	if errno != 0 {
		return 0, errno
	}
	return uint64(got), nil
}

func (h *lesserHost) atomic(at span, wr *hca.SendWR) (uint64, side) { return cpuAtomic(at.addr, wr) }

func (h *lesserHost) populate(r hca.Range, advice hca.Advice) error { return populate(r, advice) }

func (h *lesserHost) close() error { return nil }
