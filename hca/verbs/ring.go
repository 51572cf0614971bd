package verbs

import "example.com/holdfast/hca"

// request is what is remembered of a posted request until it completes.
type request struct {
	id    uint64 // the caller's
	bytes uint64
	op    hca.WCOp
	quiet bool // no completion to the caller if it succeeds
}

// ring holds the requests of one direction of one queue pair, oldest first.
// Slots are used in turn and freed in turn, because a queue pair completes in
// the order of posting. Who uses it holds the lock beside it.
type ring struct {
	slots      []request // length a power of two
	head, tail uint32    // of what is posted: [head, tail), counting on without end
	max        uint32    // requests at one time
	unsignaled uint32    // requests since the last signaled one
}

func newRing(max int) ring {
	n := 1
	for n < max {
		n *= 2
	}
	return ring{slots: make([]request, n), max: uint32(max)}
}

func (r *ring) full() bool   { return r.tail-r.head >= r.max }
func (r *ring) used() uint32 { return r.tail - r.head }

// push takes the next slot, for which there must be room, and says its number.
func (r *ring) push(q request) (slot uint32) {
	slot = r.tail & uint32(len(r.slots)-1)
	r.slots[slot] = q
	r.tail++
	return slot
}

// unpush takes the last push back.
func (r *ring) unpush() { r.tail-- }

// upTo says how many requests a completion of the slot ends: the slot's own
// and all before it, for what comes before it in the queue and brought no
// completion succeeded. 0: the slot is not in use.
func (r *ring) upTo(slot uint32) uint32 {
	ahead := (slot - r.head) & uint32(len(r.slots)-1)
	if ahead >= r.used() {
		return 0
	}
	return ahead + 1
}

// pop frees the oldest.
func (r *ring) pop() (request, bool) {
	if r.used() == 0 {
		return request{}, false
	}
	q := r.slots[r.head&uint32(len(r.slots)-1)]
	r.head++
	return q, true
}

// mustSignal says whether the next request has to be signaled although nobody
// asked for it: without a completion now and then the adapter never learns
// that its queue has room again.
func (r *ring) mustSignal() bool { return r.unsignaled+1 >= (r.max+1)/2 }

// A request's identity as the adapter sees it: which queue pair, in which life
// of that entry of the table, which direction, which slot.
const (
	slotBits  = 23
	genBits   = 16
	indexBits = 24
)

type wireID uint64

func makeWireID(index uint32, gen uint16, recv bool, slot uint32) wireID {
	id := uint64(index)<<(genBits+slotBits+1) | uint64(gen)<<(slotBits+1) | uint64(slot)<<1
	if recv {
		id |= 1
	}
	return wireID(id)
}

func (w wireID) index() uint32 { return uint32(w >> (genBits + slotBits + 1)) }
func (w wireID) gen() uint16   { return uint16(w >> (slotBits + 1)) }
func (w wireID) slot() uint32  { return uint32(w>>1) & (1<<slotBits - 1) }
func (w wireID) recv() bool    { return w&1 != 0 }
