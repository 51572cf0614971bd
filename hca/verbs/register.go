//go:build linux && cgo && verbs

package verbs

// #include "glue.h"
import "C"

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
)

// registration is the device's own part of an hca.MR.
type registration struct {
	dev    *device
	ptr    *C.struct_ibv_mr
	mr     *hca.MR
	pinned uint64 // bytes, whole pages
	gone   atomic.Bool
}

// Register registers a range, as ibv_reg_mr(3). What was pinned stays pinned
// through munmap: keys of pinned registrations go on meaning the old pages.
func (d *device) Register(r hca.Range, a hca.Access) (*hca.MR, error) {
	if err := d.enter("register"); err != nil {
		return nil, err
	}
	defer d.exit()
	return d.register("register", r, a)
}

func (d *device) register(op string, r hca.Range, a hca.Access) (*hca.MR, error) {
	if err := d.checkRegister(op, r, a); err != nil {
		return nil, err
	}
	reg := &registration{dev: d}
	if e := C.hf_reg(d.pd, C.uint64_t(r.Addr), C.uint64_t(r.Len), C.int(a), &reg.ptr); e != 0 {
		return nil, d.registerFailed(op, r, a, int(e))
	}
	if a&hca.OnDemand == 0 {
		reg.pinned = r.Pages(d.attr.PageSize).Len
	}
	reg.mr = &hca.MR{Range: r, Access: a, LKey: uint32(reg.ptr.lkey), RKey: uint32(reg.ptr.rkey), Handle: reg}
	d.mu.Lock()
	d.mu.mrs[reg.mr.LKey] = reg
	d.mu.pinned += reg.pinned
	d.mu.Unlock()
	d.count.registrations.Add(1)
	return reg.mr, nil
}

// checkRegister refuses what needs no kernel to refuse.
func (d *device) checkRegister(op string, r hca.Range, a hca.Access) error {
	no := func(why string, kind error) error {
		return &hca.OpError{Op: op, Device: d.attr.Name, Range: r, Detail: why, Err: kind}
	}
	if err := a.Validate(); err != nil {
		return &hca.OpError{Op: op, Device: d.attr.Name, Range: r, Err: err}
	}
	switch {
	case r == hca.Whole && a&hca.OnDemand != 0:
		if !d.attr.ODP.Implicit {
			return no("the device has no on-demand registration of the whole address space", hca.ErrNotSupported)
		}
	case r == hca.Whole:
		return no("the whole address space registers on demand only", hca.ErrInvalid)
	case !r.Valid():
		return no("the range is empty or runs past the end of the address space", hca.ErrInvalid)
	case r.Len > d.attr.MaxMRSize:
		return no(fmt.Sprintf("at most %s in one registration", hca.Bytes(d.attr.MaxMRSize)), hca.ErrTooLong)
	case a&hca.OnDemand != 0 && !d.attr.ODP.Support:
		return no("the device has no on-demand paging", hca.ErrNotSupported)
	}
	return nil
}

// registerFailed says what an errno of ibv_reg_mr means. EPERM is how the
// kernel says that the lock limit is zero; adapters that have no key left
// answer ENOMEM, ENOSPC or (Soft-RoCE) EINVAL.
func (d *device) registerFailed(op string, r hca.Range, a hca.Access, e int) error {
	d.mu.Lock()
	live, pinned := len(d.mu.mrs), d.mu.pinned
	d.mu.Unlock()
	err := &hca.OpError{Op: op, Device: d.attr.Name, Range: r}
	var kind error
	switch syscall.Errno(-e) {
	case syscall.EPERM, syscall.ENOMEM:
		kind = hca.ErrNoMemory
		if a&hca.OnDemand == 0 {
			err.Detail = fmt.Sprintf("%s pinned by this device", hca.Bytes(pinned))
			var lim unix.Rlimit
			if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim) == nil && lim.Cur != unix.RLIM_INFINITY {
				err.Detail += fmt.Sprintf(", memlock limit %s", hca.Bytes(lim.Cur))
				err.Hint = "raise ulimit -l, or use less memory at a time"
			}
		}
	}
	switch syscall.Errno(-e) {
	case syscall.ENOMEM, syscall.EINVAL, syscall.ENOSPC:
		if live >= d.attr.MaxMR {
			kind, err.Detail, err.Hint = hca.ErrNoKeys, fmt.Sprintf("%d registrations exist", live), ""
		}
	}
	err.Err = callFailed("ibv_reg_mr", e, kind)
	return err
}

// Deregister takes a registration back, as ibv_dereg_mr(3).
func (d *device) Deregister(mr *hca.MR) error {
	if err := d.enter("deregister"); err != nil {
		return err
	}
	defer d.exit()
	return d.deregister("deregister", mr)
}

// own is the registration that mr stands for, if it is one of this device and
// still is.
func (d *device) own(op string, mr *hca.MR) (*registration, error) {
	if mr == nil {
		return nil, d.refused(op, "no registration given", hca.ErrInvalid)
	}
	reg, ok := mr.Handle.(*registration)
	if !ok || reg.dev != d {
		return nil, &hca.OpError{Op: op, Device: d.attr.Name, Range: mr.Range, Detail: "not a registration of this device", Err: hca.ErrInvalid}
	}
	if reg.gone.Load() {
		return nil, d.goneError(op, mr)
	}
	return reg, nil
}

func (d *device) goneError(op string, mr *hca.MR) error {
	return &hca.OpError{Op: op, Device: d.attr.Name, Range: mr.Range, Detail: "deregistered before, or changed", Err: hca.ErrInvalid}
}

func (d *device) deregister(op string, mr *hca.MR) error {
	reg, err := d.own(op, mr)
	if err != nil {
		return err
	}
	if !reg.gone.CompareAndSwap(false, true) {
		return d.goneError(op, mr)
	}
	// Out of the table first: the key may be given to another registration as
	// soon as the adapter has it back.
	d.mu.Lock()
	delete(d.mu.mrs, mr.LKey)
	d.mu.Unlock()
	if e := C.hf_dereg(reg.ptr); e != 0 {
		d.mu.Lock()
		d.mu.mrs[mr.LKey] = reg
		d.mu.Unlock()
		reg.gone.Store(false)
		return &hca.OpError{Op: op, Device: d.attr.Name, Range: mr.Range, Err: callFailed("ibv_dereg_mr", int(e), nil)}
	}
	d.mu.Lock()
	d.mu.pinned -= reg.pinned
	d.mu.Unlock()
	d.count.deregistrations.Add(1)
	return nil
}
