package intercept

import (
	"example.com/holdfast/hca"
)

// maxOps is how many announced operations are known one by one. More at a time
// count as an operation on everything, until they are fewer again.
const maxOps = 128

// ledger is what explicit calls have told: which memory is owned, and what is
// being done to which memory right now.
type ledger struct {
	owned spans  // dom: the word of a piece, as a bit
	turn  uint32 // words given out
	ops   [maxOps]struct {
		id     uint64 // 0: free
		lo, hi uint64
	}
	used  int                 // ops in use
	spill map[uint64]struct{} // operations under way that found no room
	last  uint64              // id of the last operation
}

// begin enters an operation and gives its number.
func (l *ledger) begin(lo, hi uint64) uint64 {
	l.last++
	if l.used == maxOps {
		if l.spill == nil {
			l.spill = map[uint64]struct{}{}
		}
		l.spill[l.last] = struct{}{}
		return l.last
	}
	for i := range l.ops {
		if l.ops[i].id == 0 {
			l.ops[i].id, l.ops[i].lo, l.ops[i].hi = l.last, lo, hi
			break
		}
	}
	l.used++
	return l.last
}

// end takes an operation out; false if it was not under way.
func (l *ledger) end(id uint64) bool {
	for i := range l.ops {
		if l.ops[i].id == id {
			l.ops[i].id = 0
			l.used--
			return true
		}
	}
	_, ok := l.spill[id]
	delete(l.spill, id)
	return ok
}

// busy reports whether an operation under way touches [lo,hi).
func (l *ledger) busy(lo, hi uint64) bool {
	if len(l.spill) > 0 {
		return true
	}
	if l.used == 0 {
		return false
	}
	for i := range l.ops {
		if op := &l.ops[i]; op.id != 0 && op.lo < hi && lo < op.hi {
			return true
		}
	}
	return false
}

// Op is an announced operation, from Begin to End. The zero Op is none.
type Op struct {
	m      *Monitor
	id     uint64
	lo, hi uint64
	cause  hca.Cause
	owned  []span // what of the range was owned before
}

// Begin announces that the caller is about to take the memory in r away, or
// the pages in it: before the system call, so that no registration of it is
// believed from then on. End must follow when the system call has returned. In
// between, memory that overlaps r is hca.MemUnknown.
//
// With hca.CauseUnmap and hca.CauseRemap ownership of r ends here; with
// hca.CauseDiscard and hca.CauseOwner it stays. Other causes count as
// hca.CauseOwner. A range that is not valid announces everything.
//
// Why this is enough. Whether a registration of memory that an operation ends
// was made before Begin, during the operation or after it, it is not kept:
//   - asked for (Watch) before Begin: the event comes after that moment, so
//     the registration is dropped, or was published and is found dead;
//   - asked for between Begin and End: Watch finds the operation in the
//     ledger and answers hca.MemUnknown, so it is used once;
//   - asked for after End: the operation is over, and what is registered is
//     what is there now.
//
// Ledger, event and counter change under one lock, which Watch takes too, so
// nothing falls between the cases. A hit sees the counter, which is raised
// before Begin returns.
//
// Operations may overlap, in place and in time. Memory that several touch is
// unknown until the last of them ends. Under userfaultfd a discard that was
// announced leaves no doubt behind, whatever overlapped it (kernel.announced
// has the argument).
func (m *Monitor) Begin(r hca.Range, cause hca.Cause) Op {
	if !r.Valid() {
		r = hca.Whole
	}
	switch cause {
	case hca.CauseUnmap, hca.CauseRemap, hca.CauseDiscard:
	default:
		cause = hca.CauseOwner
	}
	p := m.pages(r)
	op := Op{m: m, lo: p.Addr, hi: p.End(), cause: cause}
	if cause == hca.CauseDiscard && r == hca.Whole {
		op.cause = hca.CauseOwner // nobody can vouch for all discards there are
	}
	m.own.Lock()
	op.id = m.own.begin(op.lo, op.hi)
	dom := m.own.owned.doms(op.lo, op.hi)
	if cause == hca.CauseUnmap || cause == hca.CauseRemap {
		op.owned = m.own.owned.within(op.lo, op.hi)
		m.own.owned.cut(op.lo, op.hi)
	}
	m.announce(hca.Event{Range: p, Cause: cause}, dom)
	m.own.Unlock()
	if op.cause == hca.CauseDiscard && m.kernel != nil {
		m.kernel.announced(op.id, op.lo, op.hi)
	}
	m.ringBell()
	return op
}

// announce makes an event visible and then counts it: on the words in dom, those
// of what it touches, and on the counter. The caller holds own.
func (m *Monitor) announce(ev hca.Event, dom uint32) {
	m.said.Push(ev, m.counter.Load()/hca.CounterStep)
	m.raise(dom)
	m.counter.Add(hca.CounterStep)
	m.announced[ev.Cause].Add(1)
}

// End says that the operation is over. A second End does nothing.
func (op Op) End() { op.finish(nil) }

// finish ends the operation and, under the same lock, puts the pieces of own
// back into ownership: what a failed call left as it was.
func (op Op) finish(own []span) {
	m := op.m
	if m == nil {
		return
	}
	m.own.Lock()
	if !m.own.end(op.id) {
		m.own.Unlock()
		return
	}
	for _, s := range own {
		m.own.own(s.lo, s.hi, s.dom)
	}
	m.own.Unlock()
	if op.cause == hca.CauseDiscard && m.kernel != nil {
		// The kernel reported the discard as well, before this call: it is
		// done now.
		m.kernel.over(op.id)
	}
}

// wasOwned reports whether all of the range was.
func (op Op) wasOwned() bool {
	was := spans{op.owned}
	_, ok := was.covers(op.lo, op.hi)
	return ok
}

// Adopt makes r owned memory: the caller promises that its end will be
// announced by Begin, or comes through this monitor's calls. Pages that r only
// touches are adopted whole, so r should be whole pages. For a host that maps
// by its own means. hca.ErrInvalid for a range that is not valid; hca.ErrClosed
// after Close.
func (m *Monitor) Adopt(r hca.Range) error {
	if err := m.usable("adopt memory", r); err != nil {
		return err
	}
	p := m.pages(r)
	m.own.Lock()
	defer m.own.Unlock()
	m.own.own(p.Addr, p.End(), 0)
	return nil
}

// Disown takes ownership of r back: from now on it is memory like any other.
// What was registered of it while it was owned is announced as gone
// (hca.CauseOwner), because nobody will announce its end any more.
// hca.ErrInvalid for a range that is not valid; hca.ErrClosed after Close.
func (m *Monitor) Disown(r hca.Range) error {
	if err := m.usable("disown memory", r); err != nil {
		return err
	}
	p := m.pages(r)
	m.own.Lock()
	dom := m.own.owned.doms(p.Addr, p.End())
	m.own.owned.cut(p.Addr, p.End())
	m.announce(hca.Event{Range: p, Cause: hca.CauseOwner}, dom)
	m.own.Unlock()
	m.ringBell()
	return nil
}

// usable is why an operation on r is refused at sight.
func (m *Monitor) usable(op string, r hca.Range) error {
	switch {
	case !r.Valid():
		return &hca.OpError{Op: op, Range: r, Err: hca.ErrInvalid}
	case m.closed.Load():
		return &hca.OpError{Op: op, Range: r, Err: hca.ErrClosed}
	}
	return nil
}

// pages widens a valid range to whole pages.
func (m *Monitor) pages(r hca.Range) hca.Range { return r.Pages(pageSize) }
