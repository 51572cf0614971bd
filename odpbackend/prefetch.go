package odpbackend

import (
	"errors"

	"example.com/holdfast/hca"
)

// Prefetch asks the device to make the pages of r ready, for writing by the
// device if write is true, and waits for it. r has to lie in a registration
// that is out: the device is never asked for a byte outside it. Looking for it
// is a table look-up for shared registrations and a walk over all that are out
// for the others.
//
// Failure is harmless: the pages are then faulted in when they are used.
// Errors are those of hca.Device.Advise, and ErrInvalid where no registration
// covers r.
func (b *Backend) Prefetch(r hca.Range, write bool) error {
	return b.advise(r, func(sgl []hca.SGE) error { return b.dev.Advise(advice(write), sgl) })
}

// PostPrefetch starts Prefetch and returns. The completion arrives on cq as a
// WC with Op WCAdvise and the given id, Err set if it failed. The registration
// may be given back before it arrives; the device then completes with an
// error. Errors are those of hca.Device.PostAdvise, and ErrInvalid where no
// registration covers r; nothing arrives on cq then.
func (b *Backend) PostPrefetch(cq hca.CQ, id uint64, r hca.Range, write bool) error {
	return b.advise(r, func(sgl []hca.SGE) error { return b.dev.PostAdvise(cq, id, advice(write), sgl) })
}

// advise calls do with r as an element of the registration that covers it, and
// keeps the registration while do runs.
func (b *Backend) advise(r hca.Range, do func([]hca.SGE) error) error {
	key, _, keyed := b.sharedFor(r)
	var mr *hca.MR
	if r.Valid() {
		mr = b.table.hold(key, keyed, r)
	}
	if mr == nil {
		return &hca.OpError{Op: "prefetch", Device: b.info.Name, Range: r, Detail: "no registration covers it", Err: hca.ErrInvalid}
	}
	err := do([]hca.SGE{{Addr: r.Addr, Len: r.Len, LKey: mr.LKey}})
	// The last user may have given it back meanwhile; then this drops it.
	return errors.Join(err, b.Deregister(mr))
}

// advice is the verbs name of what write asks for.
func advice(write bool) hca.Advice {
	if write {
		return hca.PrefetchWrite
	}
	return hca.Prefetch
}
