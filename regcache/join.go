package regcache

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"example.com/holdfast/hca"
)

// Join makes one Backend of several, so that one cache serves several adapters:
// each of its Regions carries a registration on every one of them. They are made
// together, all or nothing: if one adapter refuses, what the others made is
// undone in reverse order before the error is returned.
//
// The keys of a Region (LKey, RKey, SGE, Remote) are those of the first backend;
// Region.MR, LKeyOn, RKeyOn, SGEOn and RemoteOn have those of each, in the order
// given here. A Region covers what all registrations cover, and allows what all
// allow.
//
// Of the limits the tightest holds: the fewest registrations, the shortest, the
// largest page. The cache needs no monitor only if none of the backends does. It
// counts the bytes of a Region once, although every adapter that pins them is
// charged for them: the default of Config.MaxBytes is that much less, and one that
// you give has to be where a lock limit binds.
//
// A joined backend that is joined again counts as those it was made of. One
// backend alone is returned as it is.
//
// Errors: hca.ErrInvalid if there is none, or one is nil, or one says of itself
// what no backend can be.
func Join(backends ...Backend) (Backend, error) {
	j := &joint{}
	for i, b := range backends {
		switch b := b.(type) {
		case nil:
			return nil, &hca.OpError{Op: "join backends", Detail: fmt.Sprintf("number %d is nil", i), Err: hca.ErrInvalid}
		case *joint:
			j.parts = append(j.parts, b.parts...)
		default:
			j.parts = append(j.parts, b)
		}
	}
	if len(j.parts) == 0 {
		return nil, &hca.OpError{Op: "join backends", Detail: "there are none", Err: hca.ErrInvalid}
	}
	if err := j.describe(); err != nil {
		return nil, err
	}
	if len(j.parts) == 1 {
		return j.parts[0], nil
	}
	return j, nil
}

// joint is the Backend that Join makes. Immutable.
type joint struct {
	parts []Backend
	names []string
	info  BackendInfo
}

// jointMR is the Handle of a registration that a joint made.
type jointMR struct {
	mrs []*hca.MR // one a backend, in their order
}

// describe works out what all parts have in common.
func (j *joint) describe() error {
	j.info.Follows = true
	for _, b := range j.parts {
		i := b.Info()
		if i.PageSize == 0 {
			i.PageSize = 4096
		}
		if i.PageSize&(i.PageSize-1) != 0 {
			return &hca.OpError{Op: "join backends", Device: i.Name, Detail: fmt.Sprintf("its page size is %d, not a power of two", i.PageSize), Err: hca.ErrInvalid}
		}
		j.names = append(j.names, i.Name)
		j.info.Follows = j.info.Follows && i.Follows
		j.info.PageSize = max(j.info.PageSize, i.PageSize)
		j.info.MaxRegions = tighter(j.info.MaxRegions, i.MaxRegions)
		j.info.MaxLen = tighter(j.info.MaxLen, i.MaxLen)
		if !i.Follows {
			j.info.Pins += max(i.Pins, 1)
		}
	}
	j.info.Name = strings.Join(j.names, " + ")
	return nil
}

// tighter is the smaller of two limits, of which 0 is none.
func tighter[T int | uint64](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func (j *joint) Info() BackendInfo { return j.info }

// parallelFrom is the length from which registrations are made at the same time
// and not one after the other: that at which the cheapest of adapters, one in
// software at 16 us a MiB, takes clearly longer than it takes to wake a second
// processor, 5 to 45 us. Where no processor is idle it gains nothing and loses
// nothing that could be measured.
const parallelFrom = 8 << 20

// Register registers r with every backend, or with none.
func (j *joint) Register(r hca.Range, a hca.Access) (*hca.MR, error) {
	mrs, errs := make([]*hca.MR, len(j.parts)), make([]error, len(j.parts))
	register := func(i int) {
		mrs[i], errs[i] = j.parts[i].Register(r, a)
		if errs[i] == nil && (mrs[i] == nil || !mrs[i].Range.Contains(r) || !mrs[i].Access.Has(a)) {
			errs[i] = notWhatWasAsked(r, a, mrs[i])
		}
	}
	if r.Len >= parallelFrom {
		var wg sync.WaitGroup
		for i := 1; i < len(mrs); i++ {
			wg.Go(func() { register(i) })
		}
		register(0)
		wg.Wait()
	} else {
		for i := range mrs {
			if register(i); errs[i] != nil {
				break
			}
		}
	}
	if err := j.explain("register", r, errs); err != nil {
		if undo := j.drop(r, mrs); undo != nil {
			return nil, &undoError{cause: err, undo: undo}
		}
		return nil, err
	}
	mr := *mrs[0]
	mr.Handle = &jointMR{mrs: mrs}
	for _, m := range mrs[1:] {
		mr.Range = intersection(mr.Range, m.Range)
		mr.Access &= m.Access
	}
	return &mr, nil
}

// Deregister drops the registration of every backend, last first, and goes on
// if one fails.
func (j *joint) Deregister(mr *hca.MR) error {
	var h *jointMR
	if mr != nil {
		h, _ = mr.Handle.(*jointMR)
	}
	if h == nil || len(h.mrs) != len(j.parts) {
		return &hca.OpError{Op: "deregister", Device: j.info.Name, Detail: "not a registration of this backend", Err: hca.ErrInvalid}
	}
	return j.drop(mr.Range, h.mrs)
}

// drop deregisters what there is in mrs, last first.
func (j *joint) drop(r hca.Range, mrs []*hca.MR) error {
	errs := make([]error, len(mrs))
	for i := len(mrs) - 1; i >= 0; i-- {
		if mrs[i] != nil {
			errs[i] = j.parts[i].Deregister(mrs[i])
		}
	}
	return j.explain("deregister", r, errs)
}

// explain joins the errors of the backends, each with the name of its own.
func (j *joint) explain(op string, r hca.Range, errs []error) error {
	var all error
	for i, err := range errs {
		if err == nil {
			continue
		}
		err = &hca.OpError{Op: op, Device: j.names[i], Range: r, Detail: fmt.Sprintf("adapter %d of %d", i+1, len(errs)), Err: err}
		if all != nil {
			err = fmt.Errorf("%w; %w", all, err) // errors.Join, in one line
		}
		all = err
	}
	return all
}

func notWhatWasAsked(r hca.Range, a hca.Access, mr *hca.MR) error {
	if mr == nil {
		return fmt.Errorf("the backend returned neither a registration nor an error: %w", hca.ErrNotSupported)
	}
	return fmt.Errorf("the backend registered only %v for %v, not for %v: %w", mr.Range, mr.Access, a, hca.ErrNotSupported)
}

// intersection is what two ranges share, which is not nothing.
func intersection(a, b hca.Range) hca.Range {
	start := max(a.Addr, b.Addr)
	return hca.Range{Addr: start, Len: min(a.End(), b.End()) - start}
}

// undoError is a registration that failed on one adapter and then could not be
// undone on another, where it is leaked. errors.Is finds both reasons.
type undoError struct {
	cause, undo error
}

func (e *undoError) Error() string {
	return fmt.Sprintf("%v; and then, leaked: %v", e.cause, e.undo)
}

func (e *undoError) Unwrap() []error { return []error{e.cause, e.undo} }

// countUndoLocked counts a registration that could not be undone, so that Stats,
// the log and Close tell of it even if the next try works and nobody sees err.
// Cache.mu is held.
func (c *Cache) countUndoLocked(g hca.Range, err error) {
	var u *undoError
	if errors.As(err, &u) {
		c.count.deregisterErrors++
		c.failedLocked(u.undo)
		c.noteErrorLocked("a registration that failed elsewhere could not be undone", g, u.undo)
	}
}

// MR is the registration of the i-th backend of a cache over several (Join); of
// a cache over one, i is 0. It panics if there is no such backend. It is good
// until Release, like the keys, and nobody else's to deregister.
func (r *Region) MR(i int) *hca.MR {
	mrs := []*hca.MR{r.cold.mr}
	if h, ok := r.cold.mr.Handle.(*jointMR); ok {
		mrs = h.mrs
	}
	if i < 0 || i >= len(mrs) {
		panic(fmt.Sprintf("regcache: Region.MR(%d) of %d", i, len(mrs)))
	}
	return mrs[i]
}

// LKeyOn is LKey on the i-th adapter; see MR.
func (r *Region) LKeyOn(i int) uint32 { return r.MR(i).LKey }

// RKeyOn is RKey on the i-th adapter; see MR.
func (r *Region) RKeyOn(i int) uint32 { return r.MR(i).RKey }

// SGEOn is SGE for work posted to the i-th adapter; see MR.
func (r *Region) SGEOn(i int, b []byte) hca.SGE {
	s := r.SGE(b)
	s.LKey = r.MR(i).LKey
	return s
}

// RemoteOn is Remote for a peer that comes in through the i-th adapter; see MR.
func (r *Region) RemoteOn(i int, b []byte) hca.RemoteAddr {
	a := r.Remote(b)
	a.RKey = r.MR(i).RKey
	return a
}
