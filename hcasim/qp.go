package hcasim

import (
	"fmt"
	"sync"
	"time"

	"example.com/holdfast/hca"
)

// queuePair is a reliable connection. Its send queue is executed by one
// goroutine at a time, the driver: the one that posts while nobody drives, or
// whoever ends a wait (see drive.go). Its receive queue is executed by the
// driver of the peer.
//
// Lock order: nothing else of the engine is locked under mu but a completion
// queue. In particular no two queue pairs' mu at once.
type queuePair struct {
	dev    *Device
	num    uint32
	addr   hca.QPAddr
	cfg    hca.QPConfig
	sendCQ *completionQueue
	recvCQ *completionQueue

	mu      sync.Mutex
	idle    sync.Cond // on mu: driving or inbound became false
	state   hca.QPState
	closed  bool
	peer    *queuePair // set once, by Connect
	sq, rq  workQueue
	driving bool // a goroutine executes sq
	inbound bool // the peer's driver is at work in this queue pair
	starved bool // the peer waits for a receive to be posted here
	rnr     rnrWait

	// Used by the driver alone. oldValue is what an atomic found, and self
	// stands for the adapter's own memory, where it lies.
	local, remote []span
	oldValue      uint64
	self          region
}

// NewQP makes a queue pair: see hca.Device. Transport UD is not supported.
func (d *Device) NewQP(cfg hca.QPConfig) (hca.QP, error) {
	const op = "new queue pair"
	refuse := func(cause error, format string, args ...any) (hca.QP, error) {
		e := d.err(op, cause)
		e.Detail = fmt.Sprintf(format, args...)
		return nil, e
	}
	if cfg.Transport != hca.RC {
		return refuse(hca.ErrNotSupported, "transports other than RC")
	}
	for _, f := range []struct {
		name     string
		value    *int
		def, max int
	}{{"MaxSend", &cfg.MaxSend, 128, maxWR}, {"MaxRecv", &cfg.MaxRecv, 128, maxWR}, {"MaxSGE", &cfg.MaxSGE, 4, maxSGE}} {
		if *f.value < 0 || *f.value > f.max {
			return refuse(hca.ErrInvalid, "QPConfig.%s is %d, not between 0 and %d", f.name, *f.value, f.max)
		}
		if *f.value == 0 {
			*f.value = f.def
		}
	}
	if cfg.RNRTimer < 0 {
		return refuse(hca.ErrInvalid, "QPConfig.RNRTimer is %v", cfg.RNRTimer)
	}
	if cfg.RNRTimer == 0 {
		cfg.RNRTimer = time.Millisecond
	}
	if cfg.RecvCQ == nil {
		cfg.RecvCQ = cfg.SendCQ
	}
	q := &queuePair{dev: d, cfg: cfg, state: hca.QPInit, sendCQ: d.ownCQ(cfg.SendCQ), recvCQ: d.ownCQ(cfg.RecvCQ)}
	q.idle.L = &q.mu
	q.self.slot = noSlot
	if q.sendCQ == nil || q.recvCQ == nil {
		return refuse(hca.ErrInvalid, "QPConfig.SendCQ or RecvCQ is not a queue of this device")
	}
	q.sq, q.rq = newWorkQueue(cfg.MaxSend, cfg.MaxSGE), newWorkQueue(cfg.MaxRecv, cfg.MaxSGE)
	q.local, q.remote = make([]span, 0, maxSGE), make([]span, 0, maxSGE)

	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, d.err(op, hca.ErrClosed)
	}
	if d.qps >= d.attr.MaxQP {
		return refuse(hca.ErrNoMemory, "there are %d", d.qps)
	}
	if !q.sendCQ.hold() {
		return refuse(hca.ErrClosed, "the send completion queue")
	}
	if !q.recvCQ.hold() {
		q.sendCQ.drop()
		return refuse(hca.ErrClosed, "the receive completion queue")
	}
	d.qps++
	d.fab.addQP(q)
	return q, nil
}

// Addr is what the peer needs for Connect: the number in QPN, the device in
// LID, the fabric in GID.
func (q *queuePair) Addr() hca.QPAddr { return q.addr }

// Connect ties the queue pair to the peer's, which must be of a device of the
// same fabric.
func (q *queuePair) Connect(peer hca.QPAddr) error {
	const op = "connect"
	p := q.dev.fab.findQP(peer)
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.dev.err(op, hca.ErrInvalid)
	switch {
	case q.closed:
		e.Err = hca.ErrClosed
	case q.state != hca.QPInit:
		e.Detail = "the queue pair is connected or in error"
	case p == nil && peer.GID != q.dev.fab.id:
		e.Detail = "the peer is not of this fabric"
		e.Hint = "open both devices with the same Fabric"
	case p == nil:
		e.Detail = fmt.Sprintf("no queue pair %d on device %d of the fabric", peer.QPN, peer.LID)
	default:
		q.peer = p
		q.state = hca.QPReady
		return nil
	}
	return e
}

// State is the state now.
func (q *queuePair) State() hca.QPState {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.state
}

// Close flushes what is queued and frees the queue pair. It waits for a
// transfer under way.
func (q *queuePair) Close() error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return q.dev.err("close queue pair", hca.ErrClosed)
	}
	q.closed = true
	q.mu.Unlock()
	q.fail()
	q.mu.Lock()
	for q.driving || q.inbound {
		q.idle.Wait()
	}
	q.mu.Unlock()

	q.dev.fab.removeQP(q)
	q.sendCQ.drop()
	q.recvCQ.drop()
	q.dev.mu.Lock()
	q.dev.qps--
	q.dev.mu.Unlock()
	return nil
}
