package odpbackend_test

import (
	"maps"
	"slices"
	"sync"

	"example.com/holdfast/hca"
)

// recorder is a device that only registers and advises, and remembers what is
// out. Every other method is missing and would panic.
type recorder struct {
	hca.Device
	attr   hca.Attr
	refuse func(r hca.Range, a hca.Access) error // nil: nothing is refused
	gate   chan struct{}                         // if set, Register waits until it is closed

	mu       sync.Mutex
	next     uint32
	out      map[*hca.MR]bool
	made     int
	advised  []hca.SGE
	advices  []hca.Advice
	adviseMR func() error // what Advise answers; nil: nil
}

func (d *recorder) Attr() hca.Attr { return d.attr }

func (d *recorder) Register(r hca.Range, a hca.Access) (*hca.MR, error) {
	if d.gate != nil {
		<-d.gate
	}
	if d.refuse != nil {
		if err := d.refuse(r, a); err != nil {
			return nil, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next++
	d.made++
	mr := &hca.MR{Range: r, Access: a, LKey: d.next, RKey: d.next}
	if d.out == nil {
		d.out = make(map[*hca.MR]bool)
	}
	d.out[mr] = true
	return mr, nil
}

func (d *recorder) Deregister(mr *hca.MR) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.out[mr] {
		return hca.ErrInvalid
	}
	delete(d.out, mr)
	return nil
}

func (d *recorder) Advise(advice hca.Advice, sgl []hca.SGE) error {
	d.mu.Lock()
	d.advised = append(d.advised, sgl...)
	d.advices = append(d.advices, advice)
	answer := d.adviseMR
	d.mu.Unlock()
	if answer != nil {
		return answer()
	}
	return nil
}

func (d *recorder) PostAdvise(cq hca.CQ, id uint64, advice hca.Advice, sgl []hca.SGE) error {
	return d.Advise(advice, sgl)
}

// ranges are the ranges of the registrations that are out, in order.
func (d *recorder) ranges() []hca.Range {
	d.mu.Lock()
	defer d.mu.Unlock()
	var rs []hca.Range
	for mr := range maps.Keys(d.out) {
		rs = append(rs, mr.Range)
	}
	slices.SortFunc(rs, func(a, b hca.Range) int {
		if a.Addr < b.Addr {
			return -1
		}
		return 1
	})
	return rs
}

// The devices of this world, by what they can do.
const allOps = hca.ODPSend | hca.ODPRecv | hca.ODPWrite | hca.ODPRead

func implicit() *recorder {
	return &recorder{attr: hca.Attr{Name: "full0", PageSize: 4096, MaxMR: 100, MaxMRSize: 1 << 40,
		ODP: hca.ODPCaps{Support: true, Implicit: true, Prefetch: true, RC: allOps | hca.ODPAtomic}}}
}

func explicit(maxMRSize uint64) *recorder {
	return &recorder{attr: hca.Attr{Name: "rxe0", PageSize: 4096, MaxMR: 100, MaxMRSize: maxMRSize,
		ODP: hca.ODPCaps{Support: true, Prefetch: true, RC: allOps}}}
}
