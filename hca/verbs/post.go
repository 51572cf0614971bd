//go:build linux && cgo && verbs

package verbs

// #include "glue.h"
import "C"

import (
	"fmt"
	"syscall"

	"example.com/holdfast/hca"
)

// opOf is what kind of completion a send request brings.
var opOf = [...]hca.WCOp{
	hca.RDMAWrite: hca.WCRDMAWrite, hca.RDMAWriteWithImm: hca.WCRDMAWrite,
	hca.Send: hca.WCSend, hca.SendWithImm: hca.WCSend,
	hca.RDMARead: hca.WCRDMARead, hca.AtomicCmpSwap: hca.WCAtomic, hca.AtomicFetchAdd: hca.WCAtomic,
}

// PostSend posts a request, as ibv_post_send(3).
func (q *queuePair) PostSend(wr hca.SendWR) error {
	const op = "post send"
	if int(wr.Op) >= len(opOf) {
		return q.dev.refused(op, fmt.Sprintf("there is no operation %d", wr.Op), hca.ErrInvalid)
	}
	if q.transport == hca.UD && wr.Op != hca.Send && wr.Op != hca.SendWithImm {
		return q.dev.refused(op, "a datagram queue pair can only send", hca.ErrInvalid)
	}
	bytes, err := q.measure(op, wr.SGE, wr.More)
	if err != nil {
		return err
	}
	if opOf[wr.Op] == hca.WCAtomic && bytes != 8 {
		return q.dev.refused(op, fmt.Sprintf("an atomic needs 8 bytes for the old value, not %d", bytes), hca.ErrInvalid)
	}
	q.send.Lock()
	defer q.send.Unlock()
	if err := q.sendRoom(op); err != nil {
		return err
	}
	s := &q.send.wr
	n := put(&s.sge, 0, wr.SGE)
	for _, e := range wr.More {
		n = put(&s.sge, n, e)
	}
	signal := !wr.Unsignaled || q.send.mustSignal()
	s.flags = 0
	if signal {
		s.flags = C.IBV_SEND_SIGNALED
	}
	s.num_sge, s.opcode, s.imm = C.uint32_t(n), C.uint32_t(wr.Op), C.uint32_t(wr.Imm)
	s.remote_addr, s.rkey = C.uint64_t(wr.Remote.Addr), C.uint32_t(wr.Remote.RKey)
	s.compare_add, s.swap = C.uint64_t(wr.CompareAdd), C.uint64_t(wr.Swap)
	s.id = C.uint64_t(q.wire(false, q.send.push(request{id: wr.ID, bytes: bytes, op: opOf[wr.Op], quiet: wr.Unsignaled})))
	q.sendCQ.posted.Add(1)
	if e := C.hf_post_send(q.ptr, &q.send.wr); e != 0 {
		q.send.unpush()
		q.sendCQ.posted.Add(-1)
		return q.postFailed(op, "ibv_post_send", int(e))
	}
	if signal {
		q.send.unsignaled = 0
	} else {
		q.send.unsignaled++
	}
	if hca.QPState(q.state.Load()) == hca.QPError {
		q.flush()
	}
	return nil
}

// sendRoom answers nil when the send queue is connected and has a free slot.
// The send lock is held, and let go of for a moment if the queue is full: what
// completed without anybody polling for it, as unsignaled requests do, frees
// slots only when it is fetched.
func (q *queuePair) sendRoom(op string) error {
	for fetched := false; ; fetched = true {
		switch {
		case q.closed:
			return q.dev.op(op, hca.ErrClosed)
		case hca.QPState(q.state.Load()) == hca.QPInit:
			return q.dev.refused(op, "the queue pair is not connected", hca.ErrInvalid)
		case !q.send.full():
			return nil
		case fetched:
			return q.dev.refused(op, fmt.Sprintf("%d requests outstanding", q.send.used()), hca.ErrQueueFull)
		}
		q.send.Unlock()
		err := q.sendCQ.drain()
		q.send.Lock()
		if err != nil {
			return err
		}
	}
}

// PostRecv posts room for a message, as ibv_post_recv(3).
func (q *queuePair) PostRecv(wr hca.RecvWR) error {
	const op = "post receive"
	if _, err := q.measure(op, wr.SGE, wr.More); err != nil {
		return err
	}
	q.recv.Lock()
	defer q.recv.Unlock()
	switch {
	case q.closed:
		return q.dev.op(op, hca.ErrClosed)
	case q.recv.full():
		return q.dev.refused(op, fmt.Sprintf("%d requests outstanding", q.recv.used()), hca.ErrQueueFull)
	}
	r := &q.recv.wr
	n := 0
	if q.transport == hca.UD {
		n = put(&r.sge, n, q.dev.header.sge())
	}
	n = put(&r.sge, n, wr.SGE)
	for _, e := range wr.More {
		n = put(&r.sge, n, e)
	}
	r.num_sge = C.uint32_t(n)
	r.id = C.uint64_t(q.wire(true, q.recv.push(request{id: wr.ID, op: hca.WCRecv})))
	q.recvCQ.posted.Add(1)
	if e := C.hf_post_recv(q.ptr, &q.recv.wr); e != 0 {
		q.recv.unpush()
		q.recvCQ.posted.Add(-1)
		return q.postFailed(op, "ibv_post_recv", int(e))
	}
	if hca.QPState(q.state.Load()) == hca.QPError {
		q.flush()
	}
	return nil
}

// measure adds the elements up. Elements of no bytes are left out of the
// request, for to mlx5 a length of zero means 2 GiB.
func (q *queuePair) measure(op string, first hca.SGE, more []hca.SGE) (uint64, error) {
	n, bytes := 0, uint64(0)
	add := func(s hca.SGE) {
		if s.Len > 0 {
			n++
		}
		if bytes+s.Len < bytes {
			bytes = ^uint64(0)
		} else {
			bytes += s.Len
		}
	}
	add(first)
	for _, s := range more {
		add(s)
	}
	if n > q.maxSGE {
		return 0, q.dev.refused(op, fmt.Sprintf("%d elements, at most %d", n, q.maxSGE), hca.ErrInvalid)
	}
	if bytes > q.maxMsg {
		return 0, q.dev.refused(op, fmt.Sprintf("%s, at most %s in one message", hca.Bytes(bytes), hca.Bytes(q.maxMsg)), hca.ErrTooLong)
	}
	return bytes, nil
}

// put writes an element at place n, unless it is empty, and answers the next
// place.
func put(sge *[C.HF_MAX_SGE]C.struct_ibv_sge, n int, s hca.SGE) int {
	if s.Len == 0 {
		return n
	}
	sge[n] = C.struct_ibv_sge{addr: C.uint64_t(s.Addr), length: C.uint32_t(s.Len), lkey: C.uint32_t(s.LKey)}
	return n + 1
}

// postFailed says what an errno of a post means: ENOMEM is a full queue there.
func (q *queuePair) postFailed(op, call string, e int) error {
	var kind error
	if syscall.Errno(-e) == syscall.ENOMEM {
		kind = hca.ErrQueueFull
	}
	return &hca.OpError{Op: op, Device: q.dev.attr.Name, Err: callFailed(call, e, kind)}
}
