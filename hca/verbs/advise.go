//go:build linux && cgo && verbs

package verbs

// #include "glue.h"
import "C"

import (
	"fmt"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
)

// Advise prefetches, as ibv_advise_mr(3) with IBV_ADVISE_MR_FLAG_FLUSH. It
// stops at the first element that fails. The elements must lie in on-demand
// registrations; on Soft-RoCE, in ones with LocalWrite even for reading.
func (d *device) Advise(advice hca.Advice, sgl []hca.SGE) error {
	if err := d.enter("advise"); err != nil {
		return err
	}
	defer d.exit()
	return d.advise("advise", advice, sgl)
}

func (d *device) advise(op string, advice hca.Advice, sgl []hca.SGE) error {
	if err := d.checkAdvise(op, advice, sgl); err != nil {
		return err
	}
	var a C.struct_hf_advise
	a.advice = C.uint32_t(advice)
	var pages uint64
	for rest := sgl; len(rest) > 0; {
		part := rest[:min(len(rest), C.HF_MAX_SGE)]
		rest = rest[len(part):]
		n := 0
		for _, s := range part {
			n = put(&a.sge, n, s)
			pages += s.Range().Pages(d.attr.PageSize).Len / d.attr.PageSize
		}
		if a.num_sge = C.uint32_t(n); n == 0 {
			continue
		}
		if e := C.hf_advise(d.pd, &a); e != 0 {
			return d.adviseFailed(op, advice, part, int(e))
		}
	}
	d.count.prefetches.Add(1)
	d.count.prefetchPages.Add(pages)
	return nil
}

// checkAdvise looks at keys, bounds and access. The kernel does too, but with
// answers that differ from adapter to adapter, and with one errno for a range
// outside the registration and for memory that is not mapped.
func (d *device) checkAdvise(op string, advice hca.Advice, sgl []hca.SGE) error {
	if advice > hca.PrefetchNoFault {
		return d.refused(op, fmt.Sprintf("there is no advice %d", advice), hca.ErrInvalid)
	}
	if !d.attr.ODP.Prefetch {
		return d.refused(op, "adapter, kernel or library has no prefetch", hca.ErrNotSupported)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, s := range sgl {
		if s.Len == 0 {
			continue
		}
		no := func(why string, kind error) error {
			return &hca.OpError{Op: op, Device: d.attr.Name, Range: s.Range(), Detail: fmt.Sprintf("element %d: %s", i, why), Err: kind}
		}
		reg := d.mu.mrs[s.LKey]
		switch {
		case reg == nil:
			return no(fmt.Sprintf("no registration has the key %#x", s.LKey), hca.ErrInvalid)
		case reg.mr.Access&hca.OnDemand == 0:
			return no("the registration is pinned", hca.ErrInvalid)
		case !s.Range().Valid() || !reg.mr.Range.Contains(s.Range()):
			return no("not inside its registration "+reg.mr.Range.String(), hca.ErrInvalid)
		case s.Len > 1<<32-1:
			return no("an element holds less than 4 GiB", hca.ErrTooLong)
		case advice == hca.PrefetchWrite && !reg.mr.Access.Writes():
			return no("the registration does not allow writing", hca.ErrAccess)
		}
	}
	return nil
}

// adviseFailed says what an errno of ibv_advise_mr means after checkAdvise
// found nothing wrong. EFAULT: the memory is not mapped, or not so that it can
// be written. EBUSY: the pages were taken away under the call all the time,
// for a second on end (the kernel's bound). EINVAL: the adapter wants more of the registration than it has,
// as Soft-RoCE does; or, as ENOENT, it was deregistered meanwhile.
func (d *device) adviseFailed(op string, advice hca.Advice, sgl []hca.SGE, e int) error {
	var kind error
	switch syscall.Errno(-e) {
	case syscall.EFAULT, syscall.EPERM:
		kind = hca.ErrBadAddress
		if advice == hca.PrefetchWrite && d.allMapped(sgl) {
			kind = hca.ErrAccess
		}
	case syscall.EBUSY:
		kind = hca.ErrAgain
	case syscall.ENOENT, syscall.EINVAL:
		kind = hca.ErrNotSupported
		if !d.allKnown(sgl) {
			kind = hca.ErrInvalid
		}
	}
	return &hca.OpError{Op: op, Device: d.attr.Name, Range: sgl[0].Range(), Detail: fmt.Sprintf("%d elements", len(sgl)),
		Err: callFailed("ibv_advise_mr", e, kind)}
}

func (d *device) allKnown(sgl []hca.SGE) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !slices.ContainsFunc(sgl, func(s hca.SGE) bool { return s.Len > 0 && d.mu.mrs[s.LKey] == nil })
}

// allMapped says whether there is memory behind every byte: mincore(2) answers
// ENOMEM for a hole.
func (d *device) allMapped(sgl []hca.SGE) bool {
	for _, s := range sgl {
		r := s.Range().Pages(d.attr.PageSize)
		vec := make([]byte, r.Len/d.attr.PageSize+1)
		if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(r.Addr), uintptr(r.Len), uintptr(unsafe.Pointer(&vec[0]))); errno != 0 {
			return false
		}
	}
	return true
}
