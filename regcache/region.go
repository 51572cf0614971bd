package regcache

import (
	"sync/atomic"
	"time"
	"unsafe"

	"example.com/holdfast/hca"
)

// Region is a registration that its holder may use until Release. Several
// holders of the same Region share the pointer.
//
// A Region is 64 bytes, one cache line, so that a hit touches one line of it and
// two Regions never share one (a test checks the size). What a hit does not need
// is in the cold part.
type Region struct {
	start, end uint64        // what the registration covers; immutable
	state      atomic.Uint64 // see below
	access     hca.Access    // immutable
	lkey, rkey uint32        // immutable
	domains    uint32        // for the probe; immutable
	kind       hca.MemKind   // immutable
	check      check         // what a hit has to do; immutable
	word       uint8         // number of the word that counts the end of its memory; immutable
	cache      *Cache        // immutable
	cold       *cold         // immutable
}

// cold is the part of a Region that no hit touches.
type cold struct {
	mr   *hca.MR        // what to deregister; immutable
	keep unsafe.Pointer // keeps held memory alive; dropped after deregistration by who claimed it
	// guarded by Cache.mu
	hits    uint64        // that it had when it was claimed
	used    time.Duration // when it was last known to be used, by Cache.clock
	of      *Region       // whose it is; immutable
	older   *cold         // neighbours in the order of recency
	younger *cold
	born    tick // when it was registered
	trace   trace
	inIndex bool
	why     hca.Unkept
	end     end  // why it left look-up
	revoked bool // claimed while in use, because it was exported
	// A Region is allocated in 64 bytes and this in 80, so they lie in different
	// pages, and those of the Regions hold little else: with many Regions a hit
	// takes half as long as it does if the two alternate (docs/performance.md).
	_ [8]byte
}

// check is what a hit on a Region has to prove.
type check uint8

const (
	checkNothing check = iota // the memory cannot go away, or it does not matter
	checkCounter              // no event since the last that was applied
	checkProbe                // that, and none under way in the kernel
)

// The state word of a Region: everything that a hit or a Release has to change
// is in it, so that each is one locked instruction.
//
//	bits  0..23  references; bit 23 is never set in a correct program
//	bits 24..58  hits; bit 58 asks for harvesting
//	bit  59      probe: a hit has to ask the monitor; never changes
//	bit  60      claimed: somebody has taken it on himself to deregister it
//	bit  61      cold: not hit since it was last looked at for its recency
//	bit  62      parked: not in the recency list because it was in use when
//	             the list was last looked through
//	bit  63      dead: out of look-up for ever
//
// A Region is deregistered by whoever sets claimed, which can only be set when
// it is dead and has no references, by one compare-and-swap: so once. (The one
// exception is a Region that was exported: see export.go.) A hit that finds it
// dead takes its reference and its hit back; while it holds the reference nobody
// can claim, so the hits that claiming takes out of the word are exact.
const (
	stRef     uint64 = 1
	stRefs    uint64 = 1<<24 - 1
	stRefHigh uint64 = 1 << 23
	stHit     uint64 = 1 << 24
	stHitHigh uint64 = 1 << 58
	stHits    uint64 = (1<<59 - 1) &^ stRefs
	stProbe   uint64 = 1 << 59
	stClaimed uint64 = 1 << 60
	stCold    uint64 = 1 << 61
	stParked  uint64 = 1 << 62
	stDead    uint64 = 1 << 63

	// a hit leaves the straight path if any of these is set after it
	stHitRare = stDead | stCold | stProbe | stHitHigh | stRefHigh
	// a release does if any of these is
	stReleaseRare = stDead | stParked | stRefHigh
)

// probeBit is stProbe if a hit on r has to ask the monitor.
func (r *Region) probeBit() uint64 {
	if r.check == checkProbe {
		return stProbe
	}
	return 0
}

func hitsOf(w uint64) uint64 { return (w & stHits) >> 24 }

// Range is what the registration covers. It may be wider than what was asked
// for.
func (r *Region) Range() hca.Range { return hca.Range{Addr: r.start, Len: r.end - r.start} }

// pinned is what the Region counts against Config.MaxBytes.
func (r *Region) pinned() uint64 { return r.cache.pinnedBytes(r.Range()) }

// Access is what the registration allows; at least what was asked for, and more
// if others asked for more of the same range: a peer who is given the rkey may do
// all of it.
func (r *Region) Access() hca.Access { return r.access }

// LKey names the registration in work posted here.
func (r *Region) LKey() uint32 { return r.lkey }

// RKey names it in work posted by a peer. The address that goes with it is the
// address of the buffer, not that of the Region.
func (r *Region) RKey() uint32 { return r.rkey }

// Kind says how the end of the memory is learned.
func (r *Region) Kind() hca.MemKind { return r.kind }

// UsedOnce says why the Region will be dropped at its last Release, or
// hca.KeptAllRight if it was published.
func (r *Region) UsedOnce() hca.Unkept { return r.cold.why }

// SGE is the scatter/gather element for b. It panics if b is not inside the
// Region: the adapter would be told to use memory that was not registered.
func (r *Region) SGE(b []byte) hca.SGE { return r.SGERange(hca.RangeOf(b)) }

// SGERange is the element for a range, which must be inside the Region; else
// it panics.
func (r *Region) SGERange(g hca.Range) hca.SGE {
	if g.Len == 0 {
		return hca.SGE{Addr: g.Addr, LKey: r.lkey}
	}
	if g.Addr < r.start || g.End() > r.end || g.End() < g.Addr {
		panic("regcache: SGE of " + g.String() + " outside the Region " + r.Range().String())
	}
	return hca.SGE{Addr: g.Addr, Len: g.Len, LKey: r.lkey}
}

// Remote is what a peer needs to reach b inside the Region; same rule as SGE.
func (r *Region) Remote(b []byte) hca.RemoteAddr {
	return hca.RemoteAddr{Addr: r.SGE(b).Addr, RKey: r.rkey}
}

// Release gives the Region back. The keys must not be used after it. Each Get
// needs one Release; one too many is a programming error and panics as soon as
// the count shows it.
//
// Release of a Region that is kept is one atomic addition. Of one that is not,
// the last Release deregisters it before it returns.
func (r *Region) Release() {
	if debugging {
		r.traceRelease()
	}
	if w := r.state.Add(^uint64(0)); w&stReleaseRare != 0 {
		r.releaseRare(w)
	}
}

func (r *Region) releaseRare(w uint64) {
	if w&stRefs == stRefs {
		r.state.Add(stRef)
		panic("regcache: Release of a Region that nobody holds: " + r.Range().String() + r.traceReleases())
	}
	switch {
	case w&stRefs != 0:
	case w&stDead != 0:
		if r.claim() {
			r.cache.retire(r)
		} else {
			r.cache.leave(r)
		}
	case w&stParked != 0:
		r.cache.unpark(r)
	}
}

// claim reports whether the caller is the one who has to deregister r. It must
// be dead; nobody claims it while it has references.
func (r *Region) claim() bool { return r.claimIf(stDead, stRefs|stClaimed, stClaimed) }

// killIdle makes r dead and claims it in one step if nobody uses it.
func (r *Region) killIdle() bool { return r.claimIf(0, stRefs|stDead, stDead|stClaimed) }

// revive undoes killIdle, of a Region that is in the index still. Cache.mu has been
// held since. A hit that found it dead may still be on its way to claim it: it
// finds that it is not dead, and leaves it alone.
func (r *Region) revive() {
	r.state.Add(r.cold.hits * stHit)
	r.cold.hits = 0
	r.state.And(^(stDead | stClaimed))
}

// claimIf sets bits, and takes the hits out of the word, if all of the bits with
// are set and none of the bits without. A hit that comes too late may still count itself into the
// word, but it takes that back.
func (r *Region) claimIf(with, without, set uint64) bool {
	for {
		w := r.state.Load()
		if w&with != with || w&without != 0 {
			return false
		}
		if r.state.CompareAndSwap(w, w&^stHits|set) {
			r.cold.hits = hitsOf(w)
			return true
		}
	}
}

// kill makes r dead and reports whether the caller has to deregister it; if
// not, whoever gives the last reference back will.
func (r *Region) kill() bool {
	r.state.Or(stDead)
	return r.claim()
}
