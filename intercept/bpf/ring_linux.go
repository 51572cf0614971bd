//go:build linux && (amd64 || arm64)

package bpf

import (
	"sync/atomic"
	"unsafe"

	"example.com/holdfast/hca"
)

// entry is an event in the ring.
//
// Many processors write the ring at once, each at a position that it claimed
// by one addition. It clears Mark, writes the event, and sets Mark to the
// position after it and the cause: the event is complete when Mark has its
// position. A writer whose slot was claimed anew while it wrote (the ring went
// round once in that time) may have spoilt the other's event and says so: it
// adds an event of cause CauseLost over everything. If even that was overtaken
// it leaves the counter unsettled for ever.
type entry struct {
	Addr, Len atomic.Uint64
	Mark      atomic.Uint64 // position+1, shifted left by 8, and hca.Cause
	Stamp     atomic.Uint64
}

// events reads the ring.
type events struct {
	*shared
	ready atomic.Uint64 // all below is complete, or lost
}

func (e *events) entry(pos uint64) *entry {
	return (*entry)(unsafe.Add(e.mem, atRing+uintptr(pos&uint64(e.ring-1))*slot))
}

// Done is the position up to which every event is complete.
//
// While the counter is settled nobody writes, so everything that was claimed
// before the counter was read is complete by then. A slot that still is not
// holds an older event, whose writer was overtaken: the younger one is lost.
func (e *events) Done() uint64 {
	at, end := e.ready.Load(), e.word(atClaim).Load()
	settled := e.word(atCounter).Load()&hca.Unsettled == 0
	from := at
	if n := uint64(e.ring); end > n && at < end-n {
		at = end - n // what is older is lost
	}
	for at < end && (settled || e.entry(at).Mark.Load()>>8 > at) {
		at++
	}
	for at > from && !e.ready.CompareAndSwap(from, at) {
		from = e.ready.Load()
	}
	return max(at, from)
}

// At reads one event.
func (e *events) At(pos uint64) (ev hca.Event, stamp uint64, ok bool) {
	s := e.entry(pos)
	mark := s.Mark.Load()
	ev.Range.Addr = s.Addr.Load()
	ev.Range.Len = s.Len.Load()
	stamp = s.Stamp.Load()
	ev.Cause = hca.Cause(mark & 0xff)
	// The same mark before and after: nobody began to write in between.
	return ev, stamp, mark>>8 == pos+1 && s.Mark.Load() == mark
}
