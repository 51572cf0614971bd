//go:build linux && cgo && verbs

package verbs

// #include "glue.h"
import "C"

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
)

// whyNot is what came of trying to change a registration when the device was
// opened: nil for what works.
type whyNot struct{ access, memory error }

// tryRereg finds out what can be changed of a registration, and says it in a
// few words. Where no memory may be pinned nothing is tried, and nothing
// offered.
//
// The Soft-RoCE part of rdma-core (up to 65) does not know the call, but the
// kernel's does: it is then asked directly.
func (d *device) tryRereg(page uint64) (note string, err error) {
	b, err := unix.Mmap(-1, 0, int(2*page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return "", d.op("open", err)
	}
	defer func() { _ = unix.Munmap(b) }()
	one, two := hca.RangeOf(b[:page]), hca.RangeOf(b[page:])
	mr, err := d.register("open", one, hca.LocalWrite|hca.RemoteRead)
	if errors.Is(err, hca.ErrNoMemory) {
		untried := fmt.Errorf("it could not be tried: %v", err)
		d.reregNot = whyNot{untried, untried}
		return "changing registrations not tried", nil
	}
	if err != nil {
		return "", err
	}
	try := func(r hca.Range, a hca.Access) error {
		changed, err := d.rereg("open", mr, r, a)
		if err == nil {
			mr = changed
		}
		return err
	}
	d.reregNot.access = try(one, hca.LocalWrite)
	d.reregNot.memory = try(two, mr.Access)
	d.attr.Rereg = hca.ReregCaps{Access: d.reregNot.access == nil, Range: d.reregNot.memory == nil}
	switch caps := d.attr.Rereg; {
	case caps.Access && caps.Range:
		note = "registrations can be changed"
	case caps.Access:
		note = "registrations can change access, not memory"
	case caps.Range:
		note = "registrations can change memory, not access"
	default:
		note = "registrations cannot be changed"
	}
	return note, d.deregister("open", mr)
}

// Reregister changes a registration in place, as ibv_rereg_mr(3).
func (d *device) Reregister(mr *hca.MR, r hca.Range, a hca.Access) (*hca.MR, error) {
	const op = "reregister"
	if err := d.enter(op); err != nil {
		return nil, err
	}
	defer d.exit()
	if err := d.checkRereg(op, mr, r, a); err != nil {
		return nil, err
	}
	return d.rereg(op, mr, r, a)
}

// checkRereg refuses what the device cannot do, and what some kernels would do
// and should not.
func (d *device) checkRereg(op string, mr *hca.MR, r hca.Range, a hca.Access) error {
	if _, err := d.own(op, mr); err != nil {
		return err
	}
	if err := d.checkRegister(op, r, a); err != nil {
		return err
	}
	no := func(why string, kind error) error {
		return &hca.OpError{Op: op, Device: d.attr.Name, Range: mr.Range, Detail: why, Err: kind}
	}
	switch {
	case (a^mr.Access)&hca.OnDemand != 0:
		return no("a registration stays pinned or on demand", hca.ErrInvalid)
	case r != mr.Range && (r == hca.Whole || mr.Range == hca.Whole):
		return no("the whole address space stays what it is", hca.ErrInvalid)
	case r != mr.Range && !d.attr.Rereg.Range:
		return no("the memory of a registration cannot be changed", notSupported{d.reregNot.memory})
	case a != mr.Access && !d.attr.Rereg.Access:
		return no("what a registration allows cannot be changed", notSupported{d.reregNot.access})
	case a.Writes() && !mr.Access.Writes() && !d.attr.Rereg.Range:
		// Its pages were pinned, or are looked up, for reading: the page of
		// zeros that all share may be among them. Older kernels do not mind.
		return &hca.OpError{Op: op, Device: d.attr.Name, Range: mr.Range, Detail: "a registration for reading only becomes none for writing",
			Err: hca.ErrAccess, Hint: "register the memory anew"}
	}
	return nil
}

// notSupported is what was tried in vain when the device was opened.
type notSupported struct{ why error }

func (e notSupported) Error() string {
	return hca.ErrNotSupported.Error() + ", as a try when the device was opened showed: " + e.why.Error()
}
func (e notSupported) Unwrap() []error { return []error{hca.ErrNotSupported, e.why} }

// rereg asks the adapter. Like deregister it takes the registration out of the
// table before, because its key may be another's as soon as the adapter has
// changed it.
func (d *device) rereg(op string, mr *hca.MR, r hca.Range, a hca.Access) (*hca.MR, error) {
	old, err := d.own(op, mr)
	if err != nil {
		return nil, err
	}
	if r == mr.Range && a == mr.Access {
		return mr, nil
	}
	if !old.gone.CompareAndSwap(false, true) {
		return nil, d.goneError(op, mr)
	}
	want := C.struct_hf_rereg{addr: C.uint64_t(r.Addr), len: C.uint64_t(r.Len), access: C.int(a)}
	if r != mr.Range || a.Writes() && !mr.Access.Writes() {
		want.flags |= C.IBV_REREG_MR_CHANGE_TRANSLATION
	}
	if a != mr.Access {
		want.flags |= C.IBV_REREG_MR_CHANGE_ACCESS
	}
	if want.flags&C.IBV_REREG_MR_CHANGE_TRANSLATION == 0 {
		want.addr, want.len = 0, 0
	}
	byKernel := C.int(0)
	if d.softRoCE() {
		byKernel = 1
	}
	d.mu.Lock()
	delete(d.mu.mrs, mr.LKey)
	d.mu.Unlock()
	if e := C.hf_rereg(d.pd, old.ptr, &want, byKernel); e != 0 {
		d.mu.Lock()
		d.mu.mrs[mr.LKey] = old
		d.mu.Unlock()
		old.gone.Store(false)
		return nil, d.reregFailed(op, mr, r, int(e), want.reached != 0)
	}
	reg := &registration{dev: d, ptr: old.ptr}
	if a&hca.OnDemand == 0 {
		reg.pinned = r.Pages(d.attr.PageSize).Len
	}
	reg.mr = &hca.MR{Range: r, Access: a, LKey: uint32(reg.ptr.lkey), RKey: uint32(reg.ptr.rkey), Handle: reg}
	d.mu.Lock()
	d.mu.mrs[reg.mr.LKey] = reg
	d.mu.pinned += reg.pinned - old.pinned
	d.mu.Unlock()
	return reg.mr, nil
}

// reregFailed says what an errno of ibv_rereg_mr means. EACCES is how kernels
// since 2026 refuse to make a registration for reading one for writing. Once
// the driver was asked, nobody knows what is left of the registration.
func (d *device) reregFailed(op string, mr *hca.MR, r hca.Range, e int, reached bool) error {
	err := &hca.OpError{Op: op, Device: d.attr.Name, Range: r}
	var kind error
	if syscall.Errno(-e) == syscall.EPERM {
		kind = hca.ErrNoMemory // the lock limit is zero, as in registerFailed
	}
	if reached {
		err.Detail = "the registration of " + mr.Range.String() + " may only be deregistered now"
	}
	err.Err = callFailed("ibv_rereg_mr", e, kind)
	return err
}

var _ hca.Reregisterer = (*device)(nil)
