//go:build linux && cgo && verbs

package verbs

// #include <stdlib.h>
// #include "glue.h"
import "C"

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"example.com/holdfast/hca"
)

// batch is how many completions one call into C fetches.
const batch = 32

// completionQueue is a queue of the adapter, with one of our own behind it for
// what was fetched and not asked for yet, and for what never came from the
// adapter.
type completionQueue struct {
	dev *device
	id  uint64
	cq  *C.struct_ibv_cq
	ch  *C.struct_ibv_comp_channel
	raw []C.struct_ibv_wc // batch of them, in C memory; guarded by mu

	// posted is how many requests may still complete here. While it is zero
	// nobody needs to ask the adapter.
	posted atomic.Int64

	mu struct {
		sync.Mutex
		ready    []hca.WC // fetched, oldest first, from next on
		next     int
		users    int // ends of queue pairs
		jobs     int // posted registrations and advices
		closed   bool
		overflow bool // completions were lost and nobody was told yet
		dead     bool // completions were lost

		armed bool          // the adapter will raise an event
		news  chan struct{} // closed when there may be something new
		pump  *cqPump       // nil until the first Wait
	}
}

// NewCQ makes a completion queue, as ibv_create_cq(3) with a channel of its
// own.
func (d *device) NewCQ(n int) (hca.CQ, error) {
	const op = "new completion queue"
	if err := d.enter(op); err != nil {
		return nil, err
	}
	defer d.exit()
	if n < 1 || n > d.attr.MaxCQE {
		return nil, d.refused(op, fmt.Sprintf("%d entries asked for, 1 to %d can be had", n, d.attr.MaxCQE), hca.ErrInvalid)
	}
	q := &completionQueue{dev: d, id: cqIDs.Add(1)}
	q.mu.news = make(chan struct{})
	q.mu.ready = make([]hca.WC, 0, 2*batch)
	if e := C.hf_create_cq(d.ctx, C.int(n), C.uint64_t(q.id), &q.ch, &q.cq); e != 0 {
		return nil, d.failed(op, "ibv_create_cq", int(e))
	}
	q.raw = unsafe.Slice((*C.struct_ibv_wc)(C.calloc(batch, C.sizeof_struct_ibv_wc)), batch)
	d.mu.Lock()
	d.mu.cqs[q] = struct{}{}
	d.mu.Unlock()
	return q, nil
}

// cqIDs numbers completion queues for the events that concern them.
var cqIDs atomic.Uint64

// ownCQ is the queue behind the interface, if it is one of this device.
func (d *device) ownCQ(op string, cq hca.CQ) (*completionQueue, error) {
	q, ok := cq.(*completionQueue)
	if !ok || q == nil || q.dev != d {
		return nil, d.refused(op, "not a completion queue of this device", hca.ErrInvalid)
	}
	return q, nil
}

// Poll fetches what completed, with at most one call into C.
func (q *completionQueue) Poll(wc []hca.WC) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.closed {
		return 0, q.dev.op("poll", hca.ErrClosed)
	}
	if q.mu.overflow {
		q.mu.overflow = false
		return 0, &hca.OpError{Op: "poll", Device: q.dev.attr.Name, Detail: "the completion queue overflowed and lost completions",
			Err: hca.ErrNoMemory, Hint: "make it as large as all the queues that complete on it"}
	}
	n := q.take(wc)
	if n < len(wc) && q.posted.Load() > 0 {
		if err := q.fetch(batch); err != nil {
			return n, err
		}
		n += q.take(wc[n:])
	}
	return n, nil
}

// take moves what is ready. mu is held.
func (q *completionQueue) take(wc []hca.WC) int {
	n := copy(wc, q.mu.ready[q.mu.next:])
	clear(q.mu.ready[q.mu.next : q.mu.next+n]) // lets go of MRs and errors
	q.mu.next += n
	if q.mu.next == len(q.mu.ready) {
		q.mu.ready, q.mu.next = q.mu.ready[:0], 0
	}
	return n
}

// fetch moves up to most completions, at most a batch, from the adapter into
// ready. mu is held.
func (q *completionQueue) fetch(most int) error {
	n := int(C.hf_poll(q.cq, &q.raw[0], C.int(most)))
	if n < 0 {
		return q.dev.failed("poll", "ibv_poll_cq", n)
	}
	for i := range q.raw[:n] {
		if wc, ok := q.decode(&q.raw[i]); ok {
			q.mu.ready = append(q.mu.ready, wc)
		}
	}
	return nil
}

// drain fetches all that the adapter has.
func (q *completionQueue) drain() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.mu.closed {
		before := q.posted.Load()
		if err := q.fetch(batch); err != nil {
			return err
		}
		if q.posted.Load() == before {
			return nil
		}
	}
	return nil
}

// decode turns the adapter's completion into ours, and frees the slots that it
// ends. It answers false where the caller is not to see it.
func (q *completionQueue) decode(w *C.struct_ibv_wc) (hca.WC, bool) {
	id := wireID(w.wr_id)
	qp := q.dev.lookUp(id)
	if qp == nil {
		return hca.WC{}, false // of a queue pair that is closed: all it had was flushed then
	}
	status := hca.WCStatus(w.status)
	req, ok := qp.finish(id, status == hca.WCSuccess)
	if !ok || status == hca.WCSuccess && req.quiet {
		return hca.WC{}, false
	}
	wc := hca.WC{ID: req.id, Status: status, Op: req.op, QPN: qp.addr.QPN, Vendor: uint32(w.vendor_err), Len: req.bytes}
	if status != hca.WCSuccess {
		q.dev.count.errors.Add(1)
		wc.Len = 0
		qp.broke()
		return wc, true
	}
	if id.recv() {
		wc.Len = uint64(w.byte_len)
		if qp.transport == hca.UD {
			wc.Len -= headerLen
		}
		if w.opcode == C.IBV_WC_RECV_RDMA_WITH_IMM {
			wc.Op = hca.WCRecvRDMAWithImm
		}
		if w.wc_flags&C.IBV_WC_WITH_IMM != 0 {
			wc.HasImm, wc.Imm = true, binary.BigEndian.Uint32(w.anon0[:])
		}
		q.dev.count.recvs.Add(1)
	}
	return wc, true
}

// expect and unexpect count a completion that will come by deliver.
func (q *completionQueue) expect(op string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.closed {
		return q.dev.op(op, hca.ErrClosed)
	}
	q.mu.jobs++
	return nil
}

func (q *completionQueue) unexpect() {
	q.mu.Lock()
	q.mu.jobs--
	q.mu.Unlock()
}

// deliver adds a completion that was expected.
func (q *completionQueue) deliver(wc hca.WC) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.jobs--
	q.add(wc)
}

// add adds a completion from our side and wakes who waits. mu is held.
func (q *completionQueue) add(wc hca.WC) {
	if !q.mu.closed {
		q.mu.ready = append(q.mu.ready, wc)
		q.wake()
	}
}

// wake lets everybody who waits look again. mu is held.
func (q *completionQueue) wake() {
	close(q.mu.news)
	q.mu.news = make(chan struct{})
}

// use and unuse count the ends of queue pairs that complete here.
func (q *completionQueue) use(op string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.closed {
		return q.dev.op(op, hca.ErrClosed)
	}
	q.mu.users++
	return nil
}

func (q *completionQueue) unuse() {
	q.mu.Lock()
	q.mu.users--
	q.mu.Unlock()
}

// overflowed notes that the adapter lost completions. It may say so for each.
func (q *completionQueue) overflowed() {
	q.mu.Lock()
	q.mu.overflow = q.mu.overflow || !q.mu.dead
	q.mu.dead = true
	q.wake()
	q.mu.Unlock()
}

// Close frees the queue. What was not polled is lost.
func (q *completionQueue) Close() error {
	const op = "close completion queue"
	q.mu.Lock()
	switch {
	case q.mu.closed:
		q.mu.Unlock()
		return q.dev.op(op, hca.ErrClosed)
	case q.mu.users+q.mu.jobs > 0:
		defer q.mu.Unlock()
		return q.dev.refused(op, fmt.Sprintf("%d queue pair ends and %d posted requests use it", q.mu.users, q.mu.jobs), hca.ErrBusy)
	}
	q.mu.closed = true
	q.wake()
	pump := q.mu.pump
	q.mu.Unlock()

	if pump != nil {
		pump.stop()
	}
	d := q.dev
	d.mu.Lock()
	delete(d.mu.cqs, q)
	d.mu.Unlock()
	C.free(unsafe.Pointer(&q.raw[0]))
	if e := C.hf_destroy_cq(q.cq, q.ch); e != 0 {
		return d.failed(op, "ibv_destroy_cq", int(e))
	}
	return nil
}

// emptyCall is a call into C that does nothing, for the benchmark that tells
// what one costs.
func (q *completionQueue) emptyCall() { C.hf_nothing(q.cq) }
