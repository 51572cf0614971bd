package hcasim

import (
	"errors"
	"os"
	"sync"

	"example.com/holdfast/hca"
	"example.com/holdfast/hcasim/internal/uring"
)

// ringHost is the full form: fixed buffers of an io_uring are pinned memory,
// and what is written to a pipe from one and read into another has moved.
//
// One ring has one wire. More would gain nothing: the kernel lets one
// submission at a time into a ring, and its reads and writes are done inside.
type ringHost struct {
	ring *uring.Ring

	mu   sync.Mutex // for the rest
	pipe [2]int32   // the wire: read end, write end; empty between two moves
	room uint32     // bytes the wire holds
	dead bool       // the ring or the wire failed and could not be mended
	ops  [2 * batchPairs]uring.Op
	res  [2 * batchPairs]int32
	sink []byte // where left-over bytes go
}

// batchPairs is how many chunks, each as long as the wire holds, are moved by
// one system call. Registrations wait that long for the ring: 4 chunks of
// 64 KiB are 50 us. More, or a longer wire, moves 4 MiB no faster (measured
// on a 2-core machine, Linux 6.18: 0.86 to 0.99 ms for wires of 64 KiB to
// 1 MiB and batches of 1 to 16), so the wire is a pipe as it comes, and nothing
// is taken from what the user may have in large pipes (pipe(7),
// pipe-user-pages-soft).
const batchPairs = 4

func newRingHost() (host, error) {
	ring, err := uring.Open(16, maxPinned)
	if err != nil {
		return nil, err
	}
	h := &ringHost{ring: ring, pipe: [2]int32{-1, -1}, sink: make([]byte, 64<<10)}
	if err := h.newWire(); err != nil {
		return nil, errors.Join(err, ring.Close())
	}
	return h, nil
}

func (h *ringHost) describe(a *hca.Attr) {
	describeMemory(a)
	a.Form = "io_uring fixed buffers"
	a.MaxMRSize = uring.MaxBuffer
	a.PinsForWriting = true
	a.StalePins = true
}

func (h *ringHost) pin(slot uint32, r hca.Range, _ hca.Access) error {
	if err := h.ring.UpdateBuffer(slot, r.Addr, r.Len); err != nil {
		return explainPin(err, r)
	}
	return nil
}

func (h *ringHost) unpin(slot uint32, _ hca.Range) error {
	return os.NewSyscallError("io_uring_register", h.ring.UpdateBuffer(slot, 0, 0))
}

func (h *ringHost) atomic(at span, wr *hca.SendWR) (uint64, side) { return cpuAtomic(at.addr, wr) }

func (h *ringHost) populate(r hca.Range, advice hca.Advice) error { return populate(r, advice) }

func (h *ringHost) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dead = true
	return errors.Join(h.closeWire(), h.ring.Close())
}
