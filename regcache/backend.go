package regcache

import "example.com/holdfast/hca"

// Backend makes and drops registrations for the cache. pinbackend and
// odpbackend are the two that come with the project.
//
// The cache calls it from many goroutines at once and never while it holds a
// lock of its own, so a Backend may unmap, advise or allocate as it likes. It
// must not call the cache.
type Backend interface {
	// Info says what the backend is. It does not change.
	Info() BackendInfo

	// Register registers r. The registration covers r and may cover more
	// where that is the nature of the backend (a window, the whole address
	// space). Errors are those of hca.Device.Register; hca.ErrNoMemory and
	// hca.ErrNoKeys make the cache give something back and try again.
	Register(r hca.Range, a hca.Access) (*hca.MR, error)

	// Deregister drops what Register returned. The cache calls it once for
	// each. When it returns, no transfer through the keys is under way.
	Deregister(mr *hca.MR) error
}

// BackendInfo says what a Backend is and can do.
type BackendInfo struct {
	Name string // for people: "pin on live0", "odp (whole address space) on live0"

	// PageSize is the granularity of registration, bytes, a power of two.
	// 0: 4096.
	PageSize uint64

	// Follows is true where a registration follows the address space by
	// itself: on-demand paging. The cache then keeps registrations whatever
	// happens to the memory, and needs no monitor.
	Follows bool

	// MaxRegions is how many registrations can exist at one time; 0: not known.
	MaxRegions int

	// MaxLen is the longest registration, bytes; 0: no limit.
	MaxLen uint64

	// Pins is how many adapters pin each registration, each of which is charged
	// for its bytes: more than one if several are joined (Join). 0: one.
	Pins int
}
