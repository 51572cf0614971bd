package hcasim

import (
	"sync"
	"sync/atomic"

	"example.com/holdfast/hca"
)

// table is one index space of registrations. Look-up takes no lock.
type table struct {
	onDemand bool
	slots    []atomic.Pointer[region] // by index; nil: free

	mu    sync.Mutex
	gens  []uint16 // the generation handed out last, by index; 0: never
	first uint16   // generation of an index handed out for the first time
	fresh uint32   // indexes from here on were never handed out
	// free is a ring of the indexes that were given back, oldest first. It has
	// room for all of them.
	free       []uint32
	head, used uint32
}

func newTable(onDemand bool, size int, firstGen uint16) *table {
	return &table{
		onDemand: onDemand,
		slots:    make([]atomic.Pointer[region], size),
		gens:     make([]uint16, size),
		free:     make([]uint32, size),
		first:    max(firstGen&keyGenMask, 1),
	}
}

// take hands out an index with its key, or says that there is none left.
func (t *table) take() (index, key uint32, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.fresh < uint32(len(t.slots)):
		index = t.fresh
		t.fresh++
		t.gens[index] = t.first
	case t.used > 0:
		index = t.free[t.head]
		t.head = (t.head + 1) % uint32(len(t.free))
		t.used--
		if t.gens[index]++; t.gens[index] > keyGenMask {
			t.gens[index] = 1
		}
	default:
		return 0, 0, false
	}
	return index, makeKey(t.onDemand, index, uint32(t.gens[index])), true
}

// giveBack ends an index. Its slot must be empty.
func (t *table) giveBack(index uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free[(t.head+t.used)%uint32(len(t.free))] = index
	t.used++
}

// use finds the registration of a key and takes it into use: the caller must
// call release. It is refused if the key is not one of the device's, does not
// cover r, or does not allow need.
func (f *Fabric) use(d *Device, key uint32, r hca.Range, need hca.Access) *region {
	t := f.pinned
	if key&keyOnDemand != 0 {
		t = f.onDemand
	}
	index := keyIndex(key)
	if index >= uint32(len(t.slots)) {
		return nil
	}
	reg := t.slots[index].Load()
	if reg == nil || reg.mr.LKey != key || reg.dev != d || !reg.acquire() {
		return nil
	}
	if !r.Valid() || !reg.mr.Range.Contains(r) || !reg.mr.Access.Has(need) {
		reg.release()
		return nil
	}
	return reg
}
