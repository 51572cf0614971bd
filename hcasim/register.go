package hcasim

import (
	"errors"
	"fmt"

	"example.com/holdfast/hca"
)

// Register gives the adapter leave to touch r: see hca.Device.
func (d *Device) Register(r hca.Range, a hca.Access) (*hca.MR, error) {
	const op = "register"
	if err := d.checkRange(r, a); err != nil {
		return nil, d.wrap(op, r, err)
	}
	if err := d.enterMR(); err != nil {
		return nil, d.wrap(op, r, err)
	}
	reg, err := d.register(r, a)
	if err != nil {
		d.leaveMR()
		return nil, d.wrap(op, r, err)
	}
	d.count.registrations.Add(1)
	return &reg.mr, nil
}

// checkRange looks at what can be told without asking the kernel.
func (d *Device) checkRange(r hca.Range, a hca.Access) error {
	if err := a.Validate(); err != nil {
		return err
	}
	switch {
	case !r.Valid():
		return &hca.OpError{Detail: fmt.Sprintf("%#x and %#x bytes are no range", r.Addr, r.Len), Err: hca.ErrInvalid}
	case a.Has(hca.OnDemand) && !d.attr.ODP.Support:
		return &hca.OpError{Detail: "on-demand registration", Err: hca.ErrNotSupported}
	case a.Has(hca.OnDemand):
	case r == hca.Whole:
		return &hca.OpError{Detail: "the whole address space cannot be pinned", Err: hca.ErrInvalid,
			Hint: "add OnDemand"}
	case r.Len > d.attr.MaxMRSize:
		return &hca.OpError{Detail: fmt.Sprintf("the largest pinned registration is %s", hca.Bytes(d.attr.MaxMRSize)),
			Err: hca.ErrTooLong, Hint: "register it in pieces or on demand"}
	}
	return nil
}

func (d *Device) register(r hca.Range, a hca.Access) (*region, error) {
	t := d.fab.pinned
	if a.Has(hca.OnDemand) {
		t = d.fab.onDemand
	}
	index, key, ok := t.take()
	if !ok {
		return nil, &hca.OpError{Detail: fmt.Sprintf("all %d are in use in this fabric", len(t.slots)), Err: hca.ErrNoKeys}
	}
	reg := &region{dev: d, index: index, slot: noSlot}
	reg.mr = hca.MR{Range: r, Access: a, LKey: key, RKey: key, Handle: reg}
	if !t.onDemand {
		reg.slot = int32(index)
		if err := d.fab.host.pin(index, r, a); err != nil {
			t.giveBack(index)
			return nil, err
		}
		d.count.pinnedNow.Add(r.Pages(d.attr.PageSize).Len)
	}
	t.slots[index].Store(reg)
	return reg, nil
}

// Deregister takes the registration back: see hca.Device. It waits for the
// transfers under way through its keys; each of them ends by itself, after at
// most 1 GiB of copying.
func (d *Device) Deregister(mr *hca.MR) error {
	const op = "deregister"
	var reg *region
	if mr != nil {
		reg, _ = mr.Handle.(*region)
	}
	if reg == nil || reg.dev != d {
		e := d.err(op, hca.ErrInvalid)
		e.Detail = "not a registration of this device"
		return e
	}
	r := reg.mr.Range
	if !reg.retire() {
		return d.wrap(op, r, &hca.OpError{Detail: "it was deregistered before", Err: hca.ErrInvalid})
	}
	t := d.fab.pinned
	if reg.slot == noSlot {
		t = d.fab.onDemand
	}
	t.slots[reg.index].Store(nil)
	var err error
	if !t.onDemand {
		err = d.fab.host.unpin(reg.index, r)
		d.count.pinnedNow.Add(^(r.Pages(d.attr.PageSize).Len - 1))
	}
	if err == nil {
		t.giveBack(reg.index) // else the slot may still hold pages: it is not used again
	}
	d.count.deregistrations.Add(1)
	d.leaveMR()
	return d.wrap(op, r, err)
}

func (d *Device) enterMR() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return hca.ErrClosed
	}
	d.mrs++
	return nil
}

func (d *Device) leaveMR() {
	d.mu.Lock()
	d.mrs--
	d.mu.Unlock()
}

// wrap says what was tried, where and on which memory. It keeps the detail and
// the hint of an error that has them.
func (d *Device) wrap(op string, r hca.Range, err error) error {
	if err == nil {
		return nil
	}
	var inner *hca.OpError
	if errors.As(err, &inner) {
		return &hca.OpError{Op: op, Device: d.attr.Name, Range: r, Detail: inner.Detail, Err: inner.Err, Hint: inner.Hint}
	}
	return &hca.OpError{Op: op, Device: d.attr.Name, Range: r, Err: err}
}
