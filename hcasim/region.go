package hcasim

import (
	"sync/atomic"

	"example.com/holdfast/hca"
)

// noSlot is the slot of an on-demand region.
const noSlot = -1

// region is a registration from the device's side.
//
// state counts the transfers that use it; the top bit says that it is being
// deregistered. A transfer adds one and looks at the bit in the same step, so
// none can start after the bit is set, and whoever sets it sees how many are
// left to wait for.
type region struct {
	mr    hca.MR
	dev   *Device
	index uint32
	slot  int32 // in the ring's table of buffers, or noSlot
	state atomic.Uint32
	idle  chan struct{} // one token when the last user left; set before the bit

	retired atomic.Bool // Deregister has begun: it is for the first caller only
}

const regionDead = 1 << 31

// acquire takes the region into use, unless it is being deregistered.
func (r *region) acquire() bool {
	if r.state.Add(1)&regionDead != 0 {
		r.release()
		return false
	}
	return true
}

// release ends one use.
func (r *region) release() {
	if r.state.Add(^uint32(0)) == regionDead && r.idle != nil {
		select {
		case r.idle <- struct{}{}:
		default: // a transfer came too late and left again; one token is enough
		}
	}
}

// retire lets nobody use the region any more and returns when nobody does. It
// answers false if that was done, or begun, before.
func (r *region) retire() bool {
	if !r.retired.CompareAndSwap(false, true) {
		return false
	}
	if r.state.CompareAndSwap(0, regionDead) {
		return true // idle stays nil: nobody waits
	}
	r.idle = make(chan struct{}, 1)
	if r.state.Or(regionDead) != 0 {
		<-r.idle
	}
	return true
}
