package intercept

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept/internal/uffd"
)

// The raw calls take addresses as numbers, because memory that the Go runtime
// does not know has no better name.

func pointer(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

func rawMmap(addr uint64, length uintptr, prot, flags, fd int, offset int64) (uint64, error) {
	p, err := unix.MmapPtr(fd, offset, pointer(addr), length, prot, flags)
	return uint64(uintptr(p)), err
}

func rawMunmap(addr uint64, length uintptr) error { return unix.MunmapPtr(pointer(addr), length) }

func rawMremap(addr uint64, from, to uintptr, flags int, dst uint64) (uint64, error) {
	p, err := unix.MremapPtr(pointer(addr), from, pointer(dst), to, flags)
	return uint64(uintptr(p)), err
}

func rawMadvise(addr uint64, length uintptr, advice int) error {
	_, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(addr), length, uintptr(advice))
	if errno != 0 {
		return errno
	}
	return nil
}

// Map maps memory as mmap(2) does and makes it owned: its end is announced, if
// it is taken away by Unmap, Remap or Map with MAP_FIXED of this monitor. A
// raw munmap of it breaks the contract (Config.Strict if that can happen).
// What is mapped at r before, if flags have MAP_FIXED, is announced as gone, and
// is owned no more if the call fails: the kernel may have taken it away first.
// Errors are those of mmap(2), in an *hca.OpError.
func (m *Monitor) Map(r hca.Range, prot, flags, fd int, offset int64) (hca.Range, error) {
	var op Op
	if r.Len > 0 && flags&unix.MAP_FIXED != 0 && flags&unix.MAP_FIXED_NOREPLACE != unix.MAP_FIXED_NOREPLACE {
		op = m.Begin(r, hca.CauseUnmap)
	}
	addr, err := rawMmap(r.Addr, uintptr(r.Len), prot, flags, fd, offset)
	if err != nil {
		op.End() // what was there may be gone or not: it is nobody's promise now
		return hca.Range{}, callError("mmap", r, err)
	}
	got := hca.Range{Addr: addr, Len: r.Len}
	op.finish(nil)
	m.mapped(got)
	return got, nil
}

// mapped makes r owned, which the kernel has just mapped at a place that was
// free, or was announced as going. If ownership stands there still, somebody took
// that memory away unannounced: better late than never.
func (m *Monitor) mapped(r hca.Range) {
	p := m.pages(r)
	m.own.Lock()
	stale := m.own.owned.doms(p.Addr, p.End())
	if stale != 0 {
		m.own.owned.cut(p.Addr, p.End())
		m.announce(hca.Event{Range: p, Cause: hca.CauseUnmap}, stale)
	}
	m.own.own(p.Addr, p.End(), 0)
	m.own.Unlock()
	if stale != 0 {
		m.ringBell()
	}
}

// Unmap takes mappings away as munmap(2) does, announced. It works on any
// memory, owned or not. If it fails the range is owned no more, except for a
// range that the kernel refuses at sight, which changes nothing.
func (m *Monitor) Unmap(r hca.Range) error {
	var op Op
	if r.Len > 0 && r.Addr%pageSize == 0 {
		op = m.Begin(r, hca.CauseUnmap)
	}
	err := rawMunmap(r.Addr, uintptr(r.Len))
	op.End()
	if err != nil {
		return callError("munmap", r, err)
	}
	return nil
}

// Remap moves, shrinks or grows a mapping as mremap(2) does, announced. dst is
// only used with MREMAP_FIXED; what is mapped there before is announced as
// gone. If all of the old range was owned, the new one is. If a call fails that
// would only have grown or moved the mapping, the old range is owned as before;
// otherwise the kernel may have unmapped something first, and it is not.
func (m *Monitor) Remap(r hca.Range, length uint64, flags int, dst uint64) (hca.Range, error) {
	var op, over Op
	if r.Len > 0 {
		op = m.Begin(r, hca.CauseRemap)
	}
	if length > 0 && flags&unix.MREMAP_FIXED != 0 {
		over = m.Begin(hca.Range{Addr: dst, Len: length}, hca.CauseUnmap)
	}
	addr, err := rawMremap(r.Addr, uintptr(r.Len), uintptr(length), flags, dst)
	if err != nil {
		over.End()
		if flags&unix.MREMAP_FIXED == 0 && length >= r.Len {
			op.finish(op.owned)
		} else {
			op.End()
		}
		return hca.Range{}, callError("mremap", r, err)
	}
	got := hca.Range{Addr: addr, Len: length}
	over.End()
	switch {
	case !op.wasOwned():
		op.End()
	case flags&unix.MREMAP_DONTUNMAP != 0:
		op.finish(op.owned) // the old one stays, empty
		m.mapped(got)
	default:
		op.End()
		m.mapped(got)
	}
	return got, nil
}

// Advise is madvise(2). The advices that throw pages away (MADV_DONTNEED,
// MADV_DONTNEED_LOCKED, MADV_FREE, MADV_REMOVE, MADV_GUARD_INSTALL) are
// announced and settled: memory stays cacheable after them, which it does not
// if somebody else discards it. Several may overlap. Nobody else may discard the
// same range meanwhile without announcing it, because that would be taken for
// settled too. Others go to the kernel as they are.
func (m *Monitor) Advise(r hca.Range, advice int) error {
	var op Op
	switch advice {
	case unix.MADV_DONTNEED, unix.MADV_DONTNEED_LOCKED, unix.MADV_FREE, unix.MADV_REMOVE, unix.MADV_GUARD_INSTALL:
		if r.Len == 0 {
			break // the kernel does nothing
		}
		op = m.Begin(r, hca.CauseDiscard)
	}
	err := rawMadvise(r.Addr, uintptr(r.Len), advice)
	op.End()
	if err != nil {
		return callError(fmt.Sprintf("madvise %d", advice), r, err)
	}
	return nil
}

// Mmap is Map in the words of unix.Mmap: new memory at an address that the
// kernel chooses. Take it back with Munmap of this monitor, never with
// unix.Munmap.
func (m *Monitor) Mmap(fd int, offset int64, length, prot, flags int) ([]byte, error) {
	if length <= 0 || flags&unix.MAP_FIXED != 0 {
		return nil, &hca.OpError{Op: "mmap", Detail: fmt.Sprintf("length %d, flags %#x", length, flags), Err: hca.ErrInvalid, Hint: "Map takes an address"}
	}
	r, err := m.Map(hca.Range{Len: uint64(length)}, prot, flags, fd, offset)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(pointer(r.Addr)), length), nil
}

// Munmap is Unmap for what Mmap or Mremap returned, or a part of it that
// starts on a page.
func (m *Monitor) Munmap(b []byte) error { return m.Unmap(hca.RangeOf(b)) }

// Mremap is Remap for what Mmap returned, without MREMAP_FIXED.
func (m *Monitor) Mremap(b []byte, length, flags int) ([]byte, error) {
	if length <= 0 || flags&unix.MREMAP_FIXED != 0 {
		return nil, &hca.OpError{Op: "mremap", Range: hca.RangeOf(b), Detail: fmt.Sprintf("length %d, flags %#x", length, flags), Err: hca.ErrInvalid, Hint: "Remap takes an address"}
	}
	r, err := m.Remap(hca.RangeOf(b), uint64(length), flags, 0)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(pointer(r.Addr)), length), nil
}

// Madvise is Advise for a slice.
func (m *Monitor) Madvise(b []byte, advice int) error { return m.Advise(hca.RangeOf(b), advice) }

func callError(op string, r hca.Range, err error) error {
	return &hca.OpError{Op: op, Range: r, Err: err}
}

// exerciseOwned maps a page through the monitor and takes it away again.
func (m *Monitor) exerciseOwned() (hca.Range, error) {
	r, err := m.Map(hca.Range{Len: pageSize}, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS, -1, 0)
	if err != nil {
		return r, err
	}
	return r, m.Unmap(r)
}

// exerciseForeign maps a page, watches it and takes it away behind the
// monitor's back. Shared memory, because it never merges with a neighbour that
// would then be watched as well.
//
// Others may be unmapping at the same address, or be in the middle of something
// that could be about any: that passes, and is waited for.
func (m *Monitor) exerciseForeign() (r hca.Range, err error) {
	began := time.Now()
	for n := 1; ; n++ {
		r.Len = pageSize
		r.Addr, err = rawMmap(0, uintptr(pageSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS, -1, 0)
		if err != nil {
			return r, callError("exercise monitor", r, err)
		}
		w := m.Watch(r)
		if err := rawMunmap(r.Addr, uintptr(pageSize)); err != nil {
			return r, callError("exercise monitor", r, err)
		}
		if w.Kind != hca.MemUnknown {
			return r, nil
		}
		if n >= tries && (w.Why != hca.UnkeptUnsettled || time.Since(began) > patience) {
			return r, &hca.OpError{Op: "exercise monitor", Range: r, Detail: w.Why.String(), Err: errNotWatched}
		}
		runtime.Gosched()
	}
}

// uffdSettles waits until the probe answers that nothing is under way.
func uffdSettles(fd int) bool {
	for began := time.Now(); uffd.Changing(fd); {
		if time.Since(began) > patience {
			return false
		}
	}
	return true
}

func errOr(err error) error {
	if err == nil {
		return hca.ErrNotSupported
	}
	return err
}
