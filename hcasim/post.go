package hcasim

import (
	"fmt"

	"example.com/holdfast/hca"
)

// PostSend queues a request and, unless another goroutine is at it already,
// executes the send queue: the calling CPU is the DMA engine. So the request
// is as a rule complete when PostSend returns; not if the peer has no receive
// ready, and not if another goroutine drives the queue pair. See hca.QP.
func (q *queuePair) PostSend(wr hca.SendWR) error {
	const op = "post send"
	switch {
	case wr.Op > hca.AtomicFetchAdd:
		e := q.dev.err(op, hca.ErrInvalid)
		e.Detail = fmt.Sprintf("operation %d", wr.Op)
		return e
	case isAtomic(wr.Op) && (wr.SGE.Len != atomicLen || len(wr.More) != 0):
		e := q.dev.err(op, hca.ErrInvalid)
		e.Detail = fmt.Sprintf("an atomic brings %d bytes, in one element", atomicLen)
		return e
	}
	if err := q.post(op, &q.sq, wr); err != nil {
		return err
	}
	q.drive()
	return nil
}

// PostRecv queues room for one message. If the peer waits for it, its transfer
// is done here and now.
func (q *queuePair) PostRecv(wr hca.RecvWR) error {
	err := q.post("post receive", &q.rq, hca.SendWR{ID: wr.ID, SGE: wr.SGE, More: wr.More, Op: hca.Send})
	if err != nil {
		return err
	}
	q.mu.Lock()
	if q.state == hca.QPError {
		q.flushLocked()
	}
	starved := q.starved
	q.starved = false
	q.mu.Unlock()
	if starved {
		q.peer.kick()
	}
	return nil
}

func (q *queuePair) post(op string, queue *workQueue, wr hca.SendWR) error {
	total, err := q.checkPost(wr)
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		err = hca.ErrClosed
	case err != nil:
	case queue == &q.sq && q.state == hca.QPInit:
		err = &hca.OpError{Detail: "the queue pair is not connected", Err: hca.ErrInvalid}
	case queue.full():
		err = &hca.OpError{Detail: fmt.Sprintf("%d requests are outstanding", queue.n), Err: hca.ErrQueueFull}
	default:
		queue.push(wr, total)
		return nil
	}
	return q.dev.wrap(op, hca.Range{}, err)
}

// checkPost looks at what is wrong with a request whatever the state, and adds
// up its bytes.
func (q *queuePair) checkPost(wr hca.SendWR) (uint64, error) {
	if 1+len(wr.More) > q.cfg.MaxSGE {
		return 0, &hca.OpError{Detail: fmt.Sprintf("%d elements, at most %d", 1+len(wr.More), q.cfg.MaxSGE), Err: hca.ErrInvalid}
	}
	total := wr.SGE.Len
	tooLong := total > maxMsg
	for _, s := range wr.More {
		total += s.Len
		tooLong = tooLong || s.Len > maxMsg || total > maxMsg
	}
	if tooLong {
		return 0, &hca.OpError{Detail: fmt.Sprintf("the largest message is %s", hca.Bytes(maxMsg)), Err: hca.ErrTooLong}
	}
	return total, nil
}
