package hca

import "strings"

// Access says what a registration allows. The bits and their values are those
// of enum ibv_access_flags (rdma-core, libibverbs/verbs.h). Local reading is
// always allowed and has no bit.
type Access uint32

// The access bits. As in verbs, RemoteWrite and RemoteAtomic are only valid
// together with LocalWrite.
const (
	LocalRead    Access = 0      // the adapter may read the memory for work posted here: always granted
	LocalWrite   Access = 1 << 0 // the adapter may write the memory for work posted here (receive, RDMA read)
	RemoteWrite  Access = 1 << 1 // a peer may write it by rkey
	RemoteRead   Access = 1 << 2 // a peer may read it by rkey
	RemoteAtomic Access = 1 << 3 // a peer may do atomics on it by rkey
	OnDemand     Access = 1 << 6 // nothing is pinned: the adapter faults pages in (on-demand paging)
)

const accessKnown = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic | OnDemand

// Has reports whether a allows everything that want asks for.
func (a Access) Has(want Access) bool { return a&want == want }

// Writes reports whether the adapter may write memory registered this way.
func (a Access) Writes() bool { return a&(LocalWrite|RemoteWrite|RemoteAtomic) != 0 }

// Validate answers ErrInvalid, with the reason, for bits that no device knows
// and for remote writing without local writing (EINVAL in verbs).
func (a Access) Validate() error {
	if a&^accessKnown != 0 {
		return &OpError{Op: "access", Detail: "unknown bits in " + a.String(), Err: ErrInvalid}
	}
	if a&(RemoteWrite|RemoteAtomic) != 0 && a&LocalWrite == 0 {
		return &OpError{Op: "access", Detail: a.String() + " needs LocalWrite too", Err: ErrInvalid}
	}
	return nil
}

// String names the bits, joined by a bar.
func (a Access) String() string {
	if a == LocalRead {
		return "LocalRead"
	}
	var names []string
	for _, b := range []struct {
		bit  Access
		name string
	}{{LocalWrite, "LocalWrite"}, {RemoteWrite, "RemoteWrite"}, {RemoteRead, "RemoteRead"},
		{RemoteAtomic, "RemoteAtomic"}, {OnDemand, "OnDemand"}} {
		if a&b.bit != 0 {
			names = append(names, b.name)
			a &^= b.bit
		}
	}
	if a != 0 {
		names = append(names, "unknown")
	}
	return strings.Join(names, "|")
}
