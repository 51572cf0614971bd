//go:build linux && cgo && verbs

package verbs

// #include "glue.h"
import "C"

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"example.com/holdfast/hca"
)

// queuePair is a queue pair of the adapter and the rings of what is posted to
// it.
type queuePair struct {
	dev            *device
	ptr            *C.struct_ibv_qp
	transport      hca.Transport
	index          uint32
	gen            uint16
	addr           hca.QPAddr
	maxSGE         int
	maxMsg         uint64
	rnrRetry       int
	rnrTimer       int
	sendCQ, recvCQ *completionQueue

	state atomic.Uint32 // hca.QPState

	// closed is written with both locks held; either is enough to read it, and
	// to keep ptr alive.
	closed bool
	send   struct {
		sync.Mutex
		ring
		wr C.struct_hf_send // reused by every post
	}
	recv struct {
		sync.Mutex
		ring
		wr C.struct_hf_recv
	}
}

// How a connection treats a peer that does not answer: 4.096 us * 2^14 = 67 ms
// to an acknowledgement, six more tries (ibv_modify_qp(3)). Soft-RoCE takes
// seven for no end of them, as rnr_retry does, and a peer that is gone would
// never be noticed.
const (
	ackTimeout = 14
	ackRetries = 6
	// maxReads is how many reads and atomics one connection keeps under way.
	maxReads = 16
)

// NewQP makes a queue pair, as ibv_create_qp(3), and brings it to INIT.
func (d *device) NewQP(cfg hca.QPConfig) (hca.QP, error) {
	const op = "new queue pair"
	if err := d.enter(op); err != nil {
		return nil, err
	}
	defer d.exit()
	q, err := d.planQP(op, cfg)
	if err != nil {
		return nil, err
	}
	if err := q.sendCQ.use(op); err != nil {
		return nil, err
	}
	if err := q.recvCQ.use(op); err != nil {
		q.sendCQ.unuse()
		return nil, err
	}
	if err := q.create(op); err != nil {
		q.sendCQ.unuse()
		q.recvCQ.unuse()
		return nil, err
	}
	return q, nil
}

// planQP checks the wishes and fills in the defaults.
func (d *device) planQP(op string, cfg hca.QPConfig) (*queuePair, error) {
	bad := func(why string) error { return d.refused(op, "QPConfig."+why, hca.ErrInvalid) }
	def := func(n, zero int) int {
		if n == 0 {
			return zero
		}
		return n
	}
	if cfg.RecvCQ == nil {
		cfg.RecvCQ = cfg.SendCQ
	}
	cfg.MaxSend, cfg.MaxRecv, cfg.MaxSGE = def(cfg.MaxSend, 128), def(cfg.MaxRecv, 128), def(cfg.MaxSGE, min(4, d.attr.MaxSGE-1))
	q := &queuePair{dev: d, transport: cfg.Transport, maxSGE: cfg.MaxSGE, maxMsg: d.attr.MaxMsg,
		rnrRetry: rnrRetry(cfg.RNRRetry), rnrTimer: rnrTimer(cfg.RNRTimer)}
	most := d.attr.MaxSGE
	switch cfg.Transport {
	case hca.RC:
	case hca.UD:
		if !d.attr.UD {
			return nil, d.refused(op, "the adapter has no datagrams", hca.ErrNotSupported)
		}
		most-- // one is for the header
		q.maxMsg = 128 << d.port.mtu
		if err := d.needHeader(); err != nil {
			return nil, err
		}
	default:
		return nil, d.refused(op, fmt.Sprintf("there is no transport %d", cfg.Transport), hca.ErrNotSupported)
	}
	switch {
	case cfg.RNRTimer < 0:
		return nil, bad(fmt.Sprintf("RNRTimer is %v", cfg.RNRTimer))
	case cfg.MaxSend < 1 || cfg.MaxSend > d.attr.MaxWR:
		return nil, bad(fmt.Sprintf("MaxSend is %d: 1 to %d", cfg.MaxSend, d.attr.MaxWR))
	case cfg.MaxRecv < 1 || cfg.MaxRecv > d.attr.MaxWR:
		return nil, bad(fmt.Sprintf("MaxRecv is %d: 1 to %d", cfg.MaxRecv, d.attr.MaxWR))
	case cfg.MaxSGE < 1 || cfg.MaxSGE > most:
		return nil, bad(fmt.Sprintf("MaxSGE is %d: 1 to %d", cfg.MaxSGE, most))
	}
	var err error
	if q.sendCQ, err = d.ownCQ(op, cfg.SendCQ); err != nil {
		return nil, err
	}
	if q.recvCQ, err = d.ownCQ(op, cfg.RecvCQ); err != nil {
		return nil, err
	}
	q.send.ring, q.recv.ring = newRing(cfg.MaxSend), newRing(cfg.MaxRecv)
	return q, nil
}

// create makes the adapter's part and enters the queue pair in the table.
func (q *queuePair) create(op string) error {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	table := slices.Clone(*d.table.Load())
	i := slices.Index(table, nil)
	if i < 0 {
		i, table = len(table), append(table, nil)
	}
	if i >= 1<<indexBits {
		return d.op(op, hca.ErrNoKeys)
	}
	d.mu.gen++
	q.index, q.gen = uint32(i), d.mu.gen
	want := C.struct_hf_qp_want{
		send_cq: q.sendCQ.cq, recv_cq: q.recvCQ.cq, id: C.uint64_t(q.wire(false, 0)), _type: C.IBV_QPT_RC,
		max_send: C.int(q.send.max), max_recv: C.int(q.recv.max), max_send_sge: C.int(q.maxSGE), max_recv_sge: C.int(q.maxSGE),
	}
	if q.transport == hca.UD {
		want._type = C.IBV_QPT_UD
		want.max_recv_sge++
	}
	if e := C.hf_create_qp(d.pd, &want, &q.ptr); e != 0 {
		return d.failed(op, "ibv_create_qp", int(e))
	}
	access := hca.LocalWrite | hca.RemoteWrite | hca.RemoteRead
	if d.caps.atomic != 0 {
		access |= hca.RemoteAtomic
	}
	if e := C.hf_qp_init(q.ptr, C.int(d.port.number), C.int(access)); e != 0 {
		C.hf_destroy_qp(q.ptr)
		return d.failed(op, "ibv_modify_qp to INIT", int(e))
	}
	var psn [4]byte
	_, _ = rand.Read(psn[:]) // it never fails, by its documentation
	q.addr = hca.QPAddr{QPN: uint32(q.ptr.qp_num), PSN: binary.NativeEndian.Uint32(psn[:]) & (1<<24 - 1),
		LID: d.port.lid, MTU: d.port.mtu, Port: uint8(d.port.number), GID: d.port.gid}
	q.state.Store(uint32(hca.QPInit))
	table[i] = q
	d.table.Store(&table)
	d.mu.qps++
	return nil
}

func (q *queuePair) wire(recv bool, slot uint32) wireID {
	return makeWireID(q.index, q.gen, recv, slot)
}

// lookUp finds the queue pair of a wireID, nil if it is closed.
func (d *device) lookUp(id wireID) *queuePair {
	table := *d.table.Load()
	if int(id.index()) >= len(table) {
		return nil
	}
	q := table[id.index()]
	if q == nil || q.gen != id.gen() {
		return nil
	}
	return q
}

// Addr is what the peer needs for Connect.
func (q *queuePair) Addr() hca.QPAddr { return q.addr }

// lock takes both locks.
func (q *queuePair) lock() {
	q.send.Lock()
	q.recv.Lock()
}

func (q *queuePair) unlock() {
	q.recv.Unlock()
	q.send.Unlock()
}

// Connect brings the queue pair through RTR to RTS. The peer's address is
// resolved by the kernel; one that nobody answers for is refused here, one
// whose queue pair does not exist shows in the first completion.
//
// A datagram queue pair is tied to one peer the same way: it sends there, and
// receives from anybody.
func (q *queuePair) Connect(peer hca.QPAddr) error {
	const op = "connect"
	d := q.dev
	if err := d.enter(op); err != nil {
		return err
	}
	defer d.exit()
	q.lock()
	defer q.unlock()
	switch {
	case q.closed:
		return d.op(op, hca.ErrClosed)
	case hca.QPState(q.state.Load()) != hca.QPInit:
		return d.refused(op, "the queue pair was connected before", hca.ErrInvalid)
	case peer.QPN == 0 || peer.QPN >= 1<<24 || peer.PSN >= 1<<24:
		return d.refused(op, fmt.Sprintf("no peer has QPN %#x, PSN %#x", peer.QPN, peer.PSN), hca.ErrInvalid)
	}
	p := C.struct_hf_peer{qpn: C.uint32_t(peer.QPN), psn: C.uint32_t(peer.PSN), lid: C.uint16_t(peer.LID), mtu: C.int(min(max(peer.MTU, 1), d.port.mtu))}
	for i, b := range peer.GID {
		p.gid[i] = C.uint8_t(b)
	}
	own := C.struct_hf_own{
		psn: C.uint32_t(q.addr.PSN), port: C.int(d.port.number), gid_index: C.int(d.port.gidIndex),
		rd_atomic: min(maxReads, d.caps.max_rd_atomic), init_rd_atomic: min(maxReads, d.caps.max_init_rd_atomic),
		rnr_timer: C.int(q.rnrTimer), rnr_retry: C.int(q.rnrRetry), timeout: ackTimeout, retry: ackRetries,
	}
	if d.port.ethernet {
		own.ethernet = 1
	}
	if e := C.hf_qp_ready(q.ptr, &own, &p, &q.send.wr.ah); e != 0 {
		return &hca.OpError{Op: op, Device: d.attr.Name, Detail: fmt.Sprintf("peer QPN %#x", peer.QPN),
			Err: callFailed("ibv_modify_qp to RTR and RTS", int(e), hca.ErrInvalid)}
	}
	q.send.wr.remote_qpn = C.uint32_t(peer.QPN)
	q.state.Store(uint32(hca.QPReady))
	return nil
}

// State is the state now; the adapter is asked, since a peer's mistake can
// break a queue pair without any completion here.
func (q *queuePair) State() hca.QPState {
	if s := hca.QPState(q.state.Load()); s != hca.QPReady {
		return s
	}
	q.send.Lock()
	broken := false
	if !q.closed {
		s := C.hf_qp_state(q.ptr)
		broken = s == C.IBV_QPS_ERR || s == C.IBV_QPS_SQE
	}
	q.send.Unlock()
	if broken {
		q.broke()
	}
	return hca.QPState(q.state.Load())
}

// broke notes that the queue pair is in error, where the adapter brought it or
// is about to. No lock of the queue pair is held.
func (q *queuePair) broke() {
	if q.state.Swap(uint32(hca.QPError)) == uint32(hca.QPError) {
		return
	}
	// What was posted between the error and now.
	q.send.Lock()
	defer q.send.Unlock()
	if !q.closed {
		q.flush()
	}
}

// flush makes the adapter complete what was posted to a queue pair in error.
// Most do so by themselves. Soft-RoCE looks at a queue when the queue pair
// breaks and not when something is posted to it afterwards, but entering the
// state again makes it look. One lock is held.
func (q *queuePair) flush() {
	if e := C.hf_qp_error(q.ptr); e != 0 {
		q.dev.warn("flushing a queue pair", "error", callFailed("ibv_modify_qp to ERR", int(e), nil))
	}
}

// finish frees the slots that a completion ends, and counts what succeeded. It
// answers the request that completed; false if it completed before.
func (q *queuePair) finish(id wireID, good bool) (request, bool) {
	mu, ring, cq := &q.send.Mutex, &q.send.ring, q.sendCQ
	if id.recv() {
		mu, ring, cq = &q.recv.Mutex, &q.recv.ring, q.recvCQ
	}
	mu.Lock()
	n := ring.upTo(id.slot())
	var req request
	for i := range n {
		req, _ = ring.pop()
		if good || i+1 < n {
			q.dev.countDone(req)
		}
	}
	mu.Unlock()
	cq.posted.Add(-int64(n))
	return req, n > 0
}

func (d *device) countDone(req request) {
	c := d.count
	switch req.op {
	case hca.WCSend:
		c.sends.Add(1)
	case hca.WCRDMAWrite:
		c.writes.Add(1)
	case hca.WCRDMARead:
		c.reads.Add(1)
	case hca.WCAtomic:
		c.atomics.Add(1)
	}
	c.bytes.Add(req.bytes)
}

// Close breaks the queue pair, fetches what the adapter still has to say about
// it, frees it, and completes all that was left with WCWRFlushErr.
func (q *queuePair) Close() error {
	const op = "close queue pair"
	d := q.dev
	if err := d.enter(op); err != nil {
		return err
	}
	defer d.exit()
	q.lock()
	if q.closed {
		q.unlock()
		return d.op(op, hca.ErrClosed)
	}
	q.closed = true
	q.state.Store(uint32(hca.QPError))
	q.unlock()

	var first error
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	if e := C.hf_qp_error(q.ptr); e != 0 {
		keep(d.failed(op, "ibv_modify_qp to ERR", int(e)))
	}
	keep(q.sendCQ.drain())
	keep(q.recvCQ.drain())
	if e := C.hf_destroy_qp(q.ptr); e != 0 {
		keep(d.failed(op, "ibv_destroy_qp", int(e)))
	}
	if q.send.wr.ah != nil {
		C.hf_destroy_ah(q.send.wr.ah)
	}
	keep(q.sendCQ.drain())
	keep(q.recvCQ.drain())

	d.mu.Lock()
	table := slices.Clone(*d.table.Load())
	table[q.index] = nil
	d.table.Store(&table)
	d.mu.qps--
	d.mu.Unlock()

	q.bury(&q.send.Mutex, &q.send.ring, q.sendCQ)
	q.bury(&q.recv.Mutex, &q.recv.ring, q.recvCQ)
	q.sendCQ.unuse()
	q.recvCQ.unuse()
	return first
}

// bury completes what is left in a ring after the queue pair is gone.
func (q *queuePair) bury(mu *sync.Mutex, r *ring, cq *completionQueue) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	mu.Lock()
	defer mu.Unlock()
	for req, ok := r.pop(); ok; req, ok = r.pop() {
		cq.posted.Add(-1)
		q.dev.count.errors.Add(1)
		cq.add(hca.WC{ID: req.id, Status: hca.WCWRFlushErr, Op: req.op, QPN: q.addr.QPN})
	}
}
