package hca

// MR is a memory registration: the adapter's leave to touch a range. A device
// makes it and the same device takes it back; nobody writes to it in between.
type MR struct {
	// Range is what the keys cover, to the byte. It may be wider than what was
	// asked for where the device says so (the whole address space under
	// implicit on-demand paging).
	Range  Range
	Access Access // what they allow; OnDemand set if nothing is pinned
	LKey   uint32 // names the registration in work posted here
	RKey   uint32 // names it in work posted by a peer
	// Handle is the device's own and means nothing to anybody else.
	Handle any
}

// SGE is a scatter/gather element: memory for a work request and the key that
// allows the adapter to use it.
type SGE struct {
	Addr uint64
	Len  uint64
	LKey uint32
}

// Range is the memory of the element.
func (s SGE) Range() Range { return Range{Addr: s.Addr, Len: s.Len} }

// RemoteAddr is memory at the peer, by address and rkey.
type RemoteAddr struct {
	Addr uint64
	RKey uint32
}
