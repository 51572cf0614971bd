package hca

// Attr says what a device is and can do. It does not change while the device
// is open.
type Attr struct {
	Name string // how people call the device: "live0", "mlx5_0"
	// Form says in a few words what does the work, and names it aloud when it
	// is a lesser one: "io_uring fixed buffers", "mlock and process_vm_writev
	// (lesser form: ...)".
	Form string
	// Lesser is true where the device runs in a reduced form because the
	// machine forbids what the full one needs; Form says what to allow.
	Lesser bool

	PageSize  uint64 // granularity of pinning, bytes
	MaxMR     int    // registrations at one time
	MaxMRSize uint64 // bytes in one registration
	MaxMsg    uint64 // bytes in one message
	MaxQP     int
	MaxCQ     int
	MaxCQE    int // entries in one completion queue
	MaxSGE    int // elements in one work request
	MaxWR     int // outstanding requests in one queue

	// PinsForWriting is true where every pinned registration needs writable
	// memory, whatever access it asks for (io_uring fixed buffers). Read-only
	// memory then registers on demand only.
	PinsForWriting bool
	// StalePins is true where a pinned registration goes on using the old
	// pages after munmap, as a real adapter does.
	StalePins bool

	UD bool // queue pairs for datagrams can be had

	ODP   ODPCaps   // what works with on-demand registrations
	Rereg ReregCaps // what can be changed in place; the device is a Reregisterer if anything can
}

// ODPCaps mirrors struct ibv_odp_caps: what an on-demand registration may be
// used for, for each transport. Using one for an operation whose bit is off is
// undefined: ask first.
type ODPCaps struct {
	Support  bool // on-demand registrations of a range
	Implicit bool // one on-demand registration of the whole address space
	Prefetch bool // Advise works
	RC, UD   ODPOps
	// UC and XRC are what the device says of transports for which Device makes
	// no queue pairs. In verbs too XRC stands apart from the others
	// (xrc_odp_caps of struct ibv_device_attr_ex).
	UC, XRC ODPOps
}

// ODPOps is a set of operations; values as enum ibv_odp_transport_cap_bits.
type ODPOps uint32

// The operations that may touch on-demand memory.
const (
	ODPSend    ODPOps = 1 << 0
	ODPRecv    ODPOps = 1 << 1
	ODPWrite   ODPOps = 1 << 2
	ODPRead    ODPOps = 1 << 3
	ODPAtomic  ODPOps = 1 << 4
	ODPSRQRecv ODPOps = 1 << 5
)

// Has reports whether all operations of want are in the set.
func (o ODPOps) Has(want ODPOps) bool { return o&want == want }
