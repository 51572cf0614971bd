// Package ring holds the broadcast ring that carries events from one writer to
// any number of readers. The writer never waits for a reader and never
// allocates; a reader that falls behind by more than the ring holds learns
// that it lost something, not what.
//
// The layout is shared with the reader thread of package reader, which writes
// it from C: every word is a 64-bit atomic at a fixed place.
package ring

import (
	"sync/atomic"
	"unsafe"

	"example.com/holdfast/hca"
)

// Slot is one event. All words are atomic because a reader that is being
// overtaken reads them while they are written; it finds out afterwards.
type Slot struct {
	Addr  atomic.Uint64
	Len   atomic.Uint64
	Cause atomic.Uint64 // hca.Cause
	// Stamp is the count of the monitor's counter when the source took the
	// event out: an event that settled before another was taken has the
	// smaller stamp.
	Stamp atomic.Uint64
}

// Head holds the two positions of the writer. Positions count events since the
// ring was made and never wrap in practice (2^64).
type Head struct {
	// Claim is the position after the last slot that may be half written. It
	// is raised before a slot is touched.
	Claim atomic.Uint64
	// Done is the position after the last slot that is complete. It is raised
	// after the slots are written, and before the counter counts them.
	Done atomic.Uint64
	_    [48]byte // a cache line of its own
}

// Ring is a ring with one writer at a time.
type Ring struct {
	Head  *Head
	Slots []Slot // a power of two
}

// New makes a ring of n slots, a power of two, in ordinary Go memory that
// holds no pointers. A slot is 32 bytes.
func New(n int) *Ring {
	// One block: a line for the head, on a line boundary, and the slots after
	// it. The two lines more leave room to align.
	const line = unsafe.Sizeof(Head{})
	words := make([]uint64, (uintptr(n)*unsafe.Sizeof(Slot{})+2*line)/8)
	base := unsafe.Pointer(unsafe.SliceData(words))
	base = unsafe.Add(base, -uintptr(base)&(line-1))
	return &Ring{Head: (*Head)(base), Slots: unsafe.Slice((*Slot)(unsafe.Add(base, line)), n)}
}

// Push adds one event. One goroutine at a time, and not for a ring that the
// reader thread writes.
func (r *Ring) Push(ev hca.Event, stamp uint64) {
	at := r.Head.Done.Load()
	r.Head.Claim.Store(at + 1)
	s := &r.Slots[at&uint64(len(r.Slots)-1)]
	s.Addr.Store(ev.Range.Addr)
	s.Len.Store(ev.Range.Len)
	s.Cause.Store(uint64(ev.Cause))
	s.Stamp.Store(stamp)
	r.Head.Done.Store(at + 1)
}

// Done is the position after the last complete event.
func (r *Ring) Done() uint64 { return r.Head.Done.Load() }

// At reads the event at a position below Done. It answers false if the writer
// has come round and may have overwritten it: the event is lost.
func (r *Ring) At(pos uint64) (ev hca.Event, stamp uint64, ok bool) {
	s := &r.Slots[pos&uint64(len(r.Slots)-1)]
	ev.Range.Addr = s.Addr.Load()
	ev.Range.Len = s.Len.Load()
	ev.Cause = hca.Cause(s.Cause.Load())
	stamp = s.Stamp.Load()
	// The slot of pos is reused by position pos+len, and Claim goes above that
	// before the first word of it is written. Atomic loads keep their order,
	// so if Claim has not gone there by now, what was read above was whole.
	return ev, stamp, r.Head.Claim.Load()-pos <= uint64(len(r.Slots))
}
