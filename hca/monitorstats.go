package hca

// MonitorStats is what a source of events did since it was made, as
// intercept.Monitor.Stats tells it. The numbers are read one after the other and
// not at one moment.
type MonitorStats struct {
	Source string // the monitor's String

	Unmaps, Remaps, Discards uint64 // reported by the kernel
	Others                   uint64 // the same, of other causes: access taken away
	Reads                    uint64 // in how many reads (userfaultfd)
	Announced                uint64 // by calls, before anything acted
	Lost                     uint64 // times a feed fell behind by more than the ring

	Watches uint64            // calls of Watch
	Foreign uint64            // of these answered MemForeign
	Unknown [NumUnkept]uint64 // of these answered MemUnknown, by reason

	Changed uint64 // times a range changed while Watch looked at it

	Feeds  int // open now
	Known  int // pieces of address space known to be watched
	Taints int // pieces in doubt after a foreign discard
}
