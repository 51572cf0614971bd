package intercept

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept/internal/reader"
	"example.com/holdfast/intercept/internal/ring"
	"example.com/holdfast/intercept/internal/uffd"
)

var pageSize = uint64(os.Getpagesize())

// kernel is the userfaultfd source: descriptors, the thread that reads them,
// and what is known of the address space through them.
type kernel struct {
	strict  bool // owned memory is watched too
	ring    *ring.Ring
	counter *atomic.Uint64
	stats   *reader.Stats
	rung    atomic.Uint64 // the reader has rung the bell and it was not answered: it need not ring again
	fds     []int         // owned by the reader once it runs
	maps    int           // /proc/self/maps
	pagemap int           // /proc/self/pagemap
	wake    *os.File
	stopFD  int
	reader  *reader.Reader
	workers sync.WaitGroup

	between func(registered bool) // nil but in a test: runs before and after a mapping is registered

	// ended is raised before descriptors are closed, under mu, so that who holds
	// mu and sees it low may use them.
	ended atomic.Bool

	// mu guards what is known of the address space. It is held over the
	// system calls of Watch; nobody on the path of an event takes it.
	mu       sync.Mutex
	scanner  *uffd.Scanner // on pagemap
	cur      cursor        // how far the ring has been applied to known and taint
	buf      [64]hca.Event
	known    spans          // mapped without a hole and watched, until an event touches it
	taint    spans          // a discard was seen, and nothing tells when it was done
	ours     []announcement // announced and under way: what is reported of them is no doubt
	rest     spans          // scratch of doubt
	changed  uint64         // times a range changed while learn looked at it
	rejoined uint64         // mappings that registering had cut
	noQuery  bool           // the kernel has no PROCMAP_QUERY: read the whole list
}

const (
	// maxKnown and maxTaint bound what is remembered. Forgetting what is known
	// costs a look-up again; taint is widened, never forgotten.
	maxKnown = 8192
	maxTaint = 4096

	// maxMappings is how many mappings a watched range may consist of: each
	// costs four system calls under mu.
	maxMappings = 1024

	// window is the alignment to which a range is widened, within its mappings,
	// when it is verified, so that its neighbours need not be: the check walks
	// page tables and costs some 20 ns for a page that is there, less for large
	// pages and next to nothing for pages that are not.
	window = 2 << 20

	// tries is how often a range that changes while it is watched is looked at
	// again.
	tries = 3
)

// changing is the probe. Of a channel that does not exist nothing is proven.
func (k *kernel) changing(domains uint32) bool {
	if uint64(domains)>>len(k.fds) != 0 {
		return true
	}
	for i, fd := range k.fds {
		if domains&(1<<i) != 0 && uffd.Changing(fd) {
			return true
		}
	}
	return false
}

// fault is what ended the reader thread, nil while it runs.
func (k *kernel) fault() error {
	if e := k.stats.Fault.Load(); e != 0 {
		return syscall.Errno(e)
	}
	return nil
}

// catchUp applies the events that are in the ring. Whoever calls it then looks
// at the ring, so the reader need ring for later events only.
func (k *kernel) catchUp() {
	k.rung.Store(0)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.apply()
}

// apply brings known and taint up to the ring. The caller holds mu.
func (k *kernel) apply() {
	if k.ended.Load() {
		return
	}
	for {
		n := k.cur.next(k.buf[:])
		if n == 0 {
			return
		}
		for _, ev := range k.buf[:n] {
			lo, hi := ev.Range.Addr, ev.Range.End()
			switch ev.Cause {
			case hca.CauseDiscard:
				// Still mapped and watched.
				k.doubt(lo, hi)
			case hca.CauseLost:
				// Any mapping may be another, and any discard may be under
				// way. New mappings get rid of this in learn.
				k.known.clear()
				k.doubt(lo, hi)
			default:
				k.known.cut(lo, hi)
			}
		}
	}
}

// announcement is a discard that was announced and is under way.
type announcement struct{ id, lo, hi uint64 }

// announced takes note that a discard of [lo,hi) is announced and about to
// begin. Until over(id) no report of a discard there raises doubt.
//
// Why that is exact, however many announced discards overlap, and in whatever
// order they begin and end. Call the ranges on the list covered.
//   - A discard is reported, and the report taken, between its begin and its
//     end: the kernel lets it go on only when the report has been read. over
//     applies everything that was taken before it shortens the list. So every
//     report of an announced discard is applied while its range is covered, by
//     its own entry, and raises no doubt; who else is on the list, or has left
//     it, does not matter.
//   - announced applies everything that was taken before it was called, and
//     then lengthens the list. So doubt about what others discarded earlier is
//     entered before that range is covered, and nothing but Settled, or memory
//     that is mapped anew, takes it out again: no end of an announced discard
//     touches it.
//   - Of a covered range nothing is reported, then, but what is announced. So
//     reports that were lost raise no doubt there either.
//   - While any discard is under way its range is unknown, because the ledger
//     has it; after the last end nothing is left of it there nor here.
//
// What somebody else discards of a covered range, unannounced, while Begin runs
// or after it, cannot be told from what was announced and goes unnoticed:
// Monitor.Advise forbids it.
//
// If the reports before cannot be had in time the discard is not put on the
// list, and its memory is in doubt after it: slower, never wrong.
func (k *kernel) announced(id, lo, hi uint64) {
	err := k.delivered()
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil || k.ended.Load() {
		return
	}
	k.apply()
	k.ours = append(k.ours, announcement{id, lo, hi})
}

// over takes an announced discard off the list when it has returned. If its
// reports cannot be had in time its range is in doubt.
func (k *kernel) over(id uint64) {
	err := k.delivered()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.apply()
	for i, d := range k.ours {
		if d.id != id {
			continue
		}
		last := len(k.ours) - 1
		k.ours[i] = k.ours[last]
		k.ours = k.ours[:last]
		if err != nil && !k.ended.Load() { // the end of the monitor is no doubt, and has no files to ask
			k.doubt(d.lo, d.hi)
		}
		return
	}
}

// doubt marks what of [lo,hi) is not covered by announced discards.
func (k *kernel) doubt(lo, hi uint64) {
	k.rest.clear()
	k.rest.put(lo, hi, 0)
	for _, d := range k.ours {
		k.rest.cut(d.lo, d.hi)
	}
	for _, s := range k.rest.s {
		k.addTaint(s.lo, s.hi)
	}
}

// addTaint marks [lo,hi). When there are too many pieces, those that are not
// watched any more are dropped (their memory is gone, see learn), and if that
// is not enough the gaps between the nearest are filled.
func (k *kernel) addTaint(lo, hi uint64) {
	k.taint.put(lo, hi, 0)
	if len(k.taint.s) < maxTaint {
		return
	}
	live := k.taint.s[:0]
	for _, s := range k.taint.s {
		if some, err := k.scanner.AnyArmed(s.lo, s.hi); some || err != nil {
			live = append(live, s)
		}
	}
	k.taint.s = live
	for len(k.taint.s) > maxTaint/2 {
		k.taint.coarsen()
	}
}

// delivered waits until every event that was taken out of the kernel before
// the call is in the ring: the counter is settled for one moment. The reader
// is between the two for less than a microsecond.
func (k *kernel) delivered() error {
	for began := time.Now(); k.counter.Load()&hca.Unsettled != 0; runtime.Gosched() {
		switch {
		case k.ended.Load() || k.fault() != nil:
			return hca.ErrClosed
		case time.Since(began) > patience:
			return hca.ErrAgain
		}
	}
	return nil
}

// settle takes [lo,hi) out of doubt, together with every discard that had been
// delivered before the call.
func (k *kernel) settle(lo, hi uint64) error {
	err := k.delivered()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended.Load() {
		err = hca.ErrClosed
	}
	if err != nil {
		return &hca.OpError{Op: "settle", Range: hca.Range{Addr: lo, Len: hi - lo}, Err: err}
	}
	k.apply()
	k.taint.cut(lo, hi)
	return nil
}

// knows reports whether [lo,hi) is known to be watched, and free of doubt.
func (k *kernel) knows(lo, hi uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.apply()
	_, ok := k.known.covers(lo, hi)
	return ok && !k.taint.touches(lo, hi) && !k.ended.Load() && k.fault() == nil
}

// watch is Watch for memory that is not owned; lo and hi are whole pages.
func (k *kernel) watch(lo, hi uint64) hca.Watch {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended.Load() || k.fault() != nil {
		return unknown(hca.UnkeptNoSource)
	}
	why := hca.UnkeptUnsettled
	for range tries {
		k.apply()
		if dom, ok := k.known.covers(lo, hi); ok {
			if k.taint.touches(lo, hi) {
				return unknown(hca.UnkeptDiscardSeen)
			}
			return hca.Watch{Kind: hca.MemForeign, Domains: dom}
		}
		var again bool
		if why, again = k.learn(lo, hi); !again {
			return unknown(why)
		}
	}
	if why == hca.KeptAllRight {
		why = hca.UnkeptUnsettled // an event undid it each time
	}
	return unknown(why)
}

// learn watches the mappings that [lo,hi) lies in and enters them into known.
// again says that the range changed meanwhile, so that another look may help.
// The caller holds mu.
func (k *kernel) learn(lo, hi uint64) (why hca.Unkept, again bool) {
	// Room for a range in a few mappings without going to the heap.
	var few [8]span
	found := few[:0]
	for at := lo; at < hi; {
		if len(found) == maxMappings {
			return hca.UnkeptRefused, false
		}
		vma, ok, err := k.mapping(at)
		if err != nil {
			return hca.UnkeptRefused, false
		}
		if !ok {
			return hca.UnkeptNotMapped, false
		}
		k.renew(vma.Start, vma.End)
		if k.between != nil {
			k.between(false)
		}
		dom, err := k.register(vma.Start, vma.End)
		if err != nil {
			now, still, err := k.mapping(at)
			if err == nil && (!still || now.Start != vma.Start || now.End != vma.End) {
				k.changed++
				return hca.UnkeptNotMapped, true
			}
			return hca.UnkeptRefused, false
		}
		if k.between != nil {
			k.between(true)
		}
		whole := k.rejoin(vma, dom)
		found = append(found, whole)
		at = whole.hi
	}

	// Registering over a hole succeeds and watches nothing there, and between
	// looking up a mapping and registering it, it may have become another. So
	// ask whether every page is armed, at one instant.
	first := max(found[0].lo, lo&^(window-1))
	last := found[len(found)-1].hi
	if up := (hi + window - 1) &^ (window - 1); up > hi {
		last = min(last, up)
	}
	if !k.armed(first, last) {
		if first, last = lo, hi; !k.armed(lo, hi) {
			k.changed++
			return hca.UnkeptNotMapped, true
		}
	}
	if len(k.known.s) > maxKnown {
		k.known.clear()
	}
	for _, s := range found {
		k.known.put(max(s.lo, first), min(s.hi, last), s.dom)
	}
	return hca.KeptAllRight, true
}

// renew frees a mapping from doubt if it is not watched yet. A discard that
// was reported concerned watched memory. Where a mapping is not, it has come
// after that memory went, and a discard of its own that is under way, not
// reported because nobody watched, keeps the mmap lock until it is done, so
// that registering waits for it. This is the only way out of doubt besides
// settle: a report of munmap is not, because it may be read after the address
// was mapped, watched and discarded anew.
func (k *kernel) renew(lo, hi uint64) {
	if !k.taint.touches(lo, hi) {
		return
	}
	if some, err := k.scanner.AnyArmed(lo, hi); err == nil && !some {
		k.taint.cut(lo, hi)
	}
}

func (k *kernel) armed(lo, hi uint64) bool {
	all, err := k.scanner.AllArmed(lo, hi)
	return err == nil && all
}

// register watches a whole mapping on one of the descriptors and says on
// which. The same mapping always tries the same first, so that memory that is
// mapped and unmapped again and again at one place stays on one channel. A
// mapping that is on another of our own already (a piece of one that was split,
// or moved) answers EBUSY on all but that.
func (k *kernel) register(lo, hi uint64) (dom uint32, err error) {
	n := uint64(len(k.fds))
	first := (lo >> 12) * 0x9e3779b97f4a7c15 >> 32
	for i := range n {
		at := (first + i) % n
		if err = uffd.Register(k.fds[at], lo, hi); err == nil {
			return 1 << at, nil
		}
		if !errors.Is(err, syscall.EBUSY) {
			return 0, err
		}
	}
	return 0, err
}
