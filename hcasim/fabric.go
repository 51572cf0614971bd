package hcasim

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"

	"example.com/holdfast/hca"
)

// FabricConfig says what fabric to make. The zero value is sensible.
type FabricConfig struct {
	// Lesser asks for the lesser form even where io_uring is allowed: to see
	// what it does, and to test it.
	Lesser bool
}

// Fabric is what live devices share: the ring that pins and moves memory, its
// table of 16384 slots, and the names by which queue pairs find each other.
// Devices of one fabric can talk to each other. It costs two file descriptors
// for the wire and one for the ring.
type Fabric struct {
	host     host
	id       [16]byte // in every address, so that one of another fabric is told apart
	pinned   *table
	onDemand *table

	mu      sync.RWMutex
	closed  bool
	devices map[uint16]*Device
	nextDev uint16
	qps     map[uint32]*queuePair
	nextQPN uint32
}

// NewFabric makes a fabric. Where the machine forbids io_uring it comes in the
// lesser form, and Attr().Form of its devices says what to allow. Errors:
// ErrNotSupported where there is no live form at all (anything but Linux),
// ErrNoMemory, and what the kernel says.
func NewFabric(cfg FabricConfig) (*Fabric, error) {
	h, err := newHost(cfg)
	if err != nil {
		return nil, err
	}
	f := &Fabric{host: h, devices: map[uint16]*Device{}, qps: map[uint32]*queuePair{}}
	_, _ = rand.Read(f.id[:]) // never fails (crypto/rand)
	gen := binary.NativeEndian.Uint16(f.id[:])
	f.pinned = newTable(false, maxPinned, gen)
	f.onDemand = newTable(true, maxOnDemandMR, gen)
	return f, nil
}

// Close gives the ring and the wire back. Errors: ErrBusy, with the count,
// while devices are open; ErrClosed the second time.
func (f *Fabric) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return &hca.OpError{Op: "close fabric", Err: hca.ErrClosed}
	}
	if n := len(f.devices); n > 0 {
		return &hca.OpError{Op: "close fabric", Detail: fmt.Sprintf("%d devices are open", n), Err: hca.ErrBusy}
	}
	f.closed = true
	return f.host.close()
}

// join gives a new device its number.
func (f *Fabric) join(d *Device) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return &hca.OpError{Op: "open", Detail: "the fabric", Err: hca.ErrClosed}
	}
	const most = 1 << 15
	if len(f.devices) >= most {
		return &hca.OpError{Op: "open", Detail: fmt.Sprintf("the fabric has %d devices", most), Err: hca.ErrNoKeys}
	}
	for {
		f.nextDev++
		if f.nextDev != 0 && f.devices[f.nextDev] == nil {
			break
		}
	}
	d.id = f.nextDev
	f.devices[d.id] = d
	return nil
}

func (f *Fabric) leave(d *Device) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.devices, d.id)
}

// qpnMask cuts a queue pair's number to the 24 bits that verbs gives it.
const qpnMask = 1<<24 - 1

func (f *Fabric) addQP(q *queuePair) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		f.nextQPN = (f.nextQPN + 1) & qpnMask
		if f.nextQPN != 0 && f.qps[f.nextQPN] == nil {
			break
		}
	}
	q.num = f.nextQPN
	q.addr = hca.QPAddr{QPN: q.num, LID: q.dev.id, Port: 1, GID: f.id}
	f.qps[q.num] = q
}

func (f *Fabric) removeQP(q *queuePair) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.qps, q.num)
}

// findQP is the queue pair at an address, nil if there is none.
func (f *Fabric) findQP(a hca.QPAddr) *queuePair {
	f.mu.RLock()
	defer f.mu.RUnlock()
	q := f.qps[a.QPN]
	if q == nil || q.addr != a {
		return nil
	}
	return q
}
