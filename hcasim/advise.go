package hcasim

import (
	"fmt"

	"example.com/holdfast/hca"
)

// Advise makes pages ready: see hca.Device. Nothing outside the registrations
// is touched: the elements lie inside them, and are widened to whole pages,
// which hold a byte of the registration each. Pinned memory is ready as it is.
func (d *Device) Advise(advice hca.Advice, sgl []hca.SGE) error {
	const op = "advise"
	if err := d.checkAdvice(advice); err != nil {
		return d.wrap(op, hca.Range{}, err)
	}
	if d.isClosed() {
		return d.err(op, hca.ErrClosed)
	}
	var pages uint64
	for _, s := range sgl {
		n, err := d.adviseOne(advice, s)
		if err != nil {
			return d.wrap(op, s.Range(), err)
		}
		pages += n
	}
	d.count.prefetches.Add(1)
	d.count.prefetchPages.Add(pages)
	return nil
}

func (d *Device) checkAdvice(advice hca.Advice) error {
	switch {
	case advice > hca.PrefetchNoFault:
		return &hca.OpError{Detail: fmt.Sprintf("advice %d", advice), Err: hca.ErrInvalid}
	case !d.attr.ODP.Prefetch:
		return &hca.OpError{Detail: "the kernel has no MADV_POPULATE_READ (Linux 5.14)", Err: hca.ErrNotSupported}
	}
	return nil
}

// adviseOne answers how many pages it covered.
func (d *Device) adviseOne(advice hca.Advice, s hca.SGE) (uint64, error) {
	reg, err := d.adviseRegion(advice, s)
	if err != nil || reg == nil {
		return 0, err
	}
	defer reg.release()
	pages := s.Range().Pages(d.attr.PageSize)
	if reg.slot == noSlot {
		if err := d.fab.host.populate(pages, advice); err != nil {
			return 0, err
		}
	}
	return pages.Len / d.attr.PageSize, nil
}

// adviseRegion checks one element and takes its region into use; nil for an
// element of no bytes.
func (d *Device) adviseRegion(advice hca.Advice, s hca.SGE) (*region, error) {
	if s.Len == 0 {
		return nil, nil
	}
	reg := d.fab.use(d, s.LKey, s.Range(), hca.LocalRead)
	if reg == nil {
		return nil, &hca.OpError{Detail: fmt.Sprintf("key %#x is unknown or does not cover it", s.LKey), Err: hca.ErrInvalid}
	}
	if advice == hca.PrefetchWrite && !reg.mr.Access.Writes() {
		reg.release()
		return nil, &hca.OpError{Detail: "write advice on a registration with " + reg.mr.Access.String(), Err: hca.ErrAccess}
	}
	return reg, nil
}

func (d *Device) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}
