package hca

import "sync/atomic"

// MemKind says how the end of a piece of memory is learned, and with that what
// a kept registration of it needs. The order is from what is known least to
// what is known best; memory of several kinds counts as the least of them.
type MemKind uint8

// The four kinds of memory.
const (
	// MemUnknown: nobody tells when it goes away. Registered, used, dropped.
	MemUnknown MemKind = iota
	// MemForeign: the kernel reports its end, after the fact. A hit needs the
	// counter and the probe.
	MemForeign
	// MemOwned: its end is announced before it comes and settled after. A hit
	// needs the counter.
	MemOwned
	// MemHeld: Go heap that the cache keeps alive. A hit needs nothing.
	MemHeld
)

// String names the kind.
func (k MemKind) String() string {
	switch k {
	case MemForeign:
		return "foreign"
	case MemOwned:
		return "owned"
	case MemHeld:
		return "held"
	}
	return "unknown"
}

// Event is something that took memory away, or is about to.
type Event struct {
	Range Range
	Cause Cause
}

// Cause is what happened.
type Cause uint8

// The causes. CauseLost means that events were dropped because nobody read
// them in time: anything may have changed, and Range is Whole.
const (
	CauseUnmap   Cause = iota + 1 // munmap, a mapping over it, a heap that shrank
	CauseRemap                    // mremap moved it away
	CauseDiscard                  // its pages were or are being thrown away (madvise)
	CauseOwner                    // whoever manages the memory says so
	CauseLost
)

// String names the cause.
func (c Cause) String() string {
	switch c {
	case CauseUnmap:
		return "unmap"
	case CauseRemap:
		return "remap"
	case CauseDiscard:
		return "discard"
	case CauseOwner:
		return "owner"
	case CauseLost:
		return "lost"
	}
	return "none"
}

// The counter of a monitor is a 64-bit word in two parts. The low 16 bits count
// the sources that have taken an event out of the kernel and not yet put it
// where feeds can read it; while any is set the counter is unsettled and proves
// nothing. The rest counts events and never goes back.
const (
	Unsettled   uint64 = 1<<16 - 1 // mask of the unsettled part
	CounterStep uint64 = 1 << 16   // one event more
)

// Watch is what a monitor answers when it is asked to look after a range.
type Watch struct {
	Kind MemKind
	// Domains is the set of event channels, one bit each, on which the end of
	// this memory would arrive: what the probe has to ask. 0 unless Kind is
	// MemForeign.
	Domains uint32
	// Counter is, for MemOwned, the word that counts before this memory goes, in
	// the same encoding as the monitor's counter and with the same promises. It
	// counts little else, so that the end of other memory disturbs hits on this as
	// little as can be. nil: the monitor's counter, which counts everything.
	Counter *atomic.Uint64
	// Why says in a few words why the memory is not known better, for MemUnknown.
	Why Unkept
}

// Unkept is a reason not to keep a registration.
type Unkept uint8

// The reasons. The first four come from monitors, the others from the cache.
const (
	KeptAllRight      Unkept = iota // no reason
	UnkeptNoSource                  // no source sees this memory end
	UnkeptDiscardSeen               // a foreign discard was seen on it and nothing tells when it was done
	UnkeptNotMapped                 // part of it is not mapped, or changed under the watch
	UnkeptRefused                   // the kernel refused to watch it
	UnkeptLimit                     // no room within the cache's limits
	UnkeptUnsettled                 // events kept coming
	NumUnkept                       // how many there are
)

// String says the reason.
func (u Unkept) String() string {
	switch u {
	case KeptAllRight:
		return "kept"
	case UnkeptNoSource:
		return "no source sees it end"
	case UnkeptDiscardSeen:
		return "a discard was seen on it"
	case UnkeptNotMapped:
		return "not mapped throughout"
	case UnkeptRefused:
		return "the kernel would not watch it"
	case UnkeptLimit:
		return "no room within the limits"
	case UnkeptUnsettled:
		return "events kept coming"
	}
	return "unknown reason"
}

// Feed is one reader's view of the events of a monitor: every event since the
// feed was opened, in an order in which nothing that settled before something
// else comes after it. One goroutine at a time.
type Feed interface {
	// Next moves up to len(buf) events into buf and says how many; 0 means
	// that all that the counter counted when Next was called, as far as it was
	// settled, has been handed out. It does not wait, allocate or lock.
	Next(buf []Event) int
	// Close ends the feed. The wake function is not called after it returns.
	Close() error
}
