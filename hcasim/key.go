package hcasim

// A key is 32 bits: which table, which place in it, and the generation of the
// place.
//
//	bit 31      1: on-demand table, 0: pinned table
//	bits 14-30  index in the table; a pinned one is its slot in the ring
//	bits 0-13   generation, 1 to 16383: how often the place was handed out
//
// Two things keep a stale key from being taken for a new one: a place that
// was given back goes to the end of a queue and is not handed out again before
// every other, and each time it is the generation is one higher. So a pinned
// key comes back after 16384 * 16383 registrations at the earliest (268
// million). The tables belong to the fabric and each entry names its device, so
// no bits are spent on the device: a key of another device of the fabric is
// found and refused. The first generation is drawn at random for each fabric,
// so that a key of one is as a rule nothing in another. No key is 0.
const (
	keyGenBits    = 14
	keyGenMask    = 1<<keyGenBits - 1
	keyIndexBits  = 17
	keyIndexMask  = 1<<keyIndexBits - 1
	keyOnDemand   = 1 << 31
	maxPinned     = 1 << 14 // slots of the ring
	maxOnDemandMR = 1 << keyIndexBits
)

func makeKey(onDemand bool, index, gen uint32) uint32 {
	k := index<<keyGenBits | gen
	if onDemand {
		k |= keyOnDemand
	}
	return k
}

func keyIndex(k uint32) uint32 { return k >> keyGenBits & keyIndexMask }
