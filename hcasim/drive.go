package hcasim

import "example.com/holdfast/hca"

// drive executes the send queue until it is empty, waits for the peer, or is
// in error. One goroutine at a time does it; another that comes meanwhile
// leaves its request to that one, which looks again, under the lock, before it
// goes.
func (q *queuePair) drive() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.driving {
		return
	}
	q.driving = true
	for q.state == hca.QPReady && q.sq.n > 0 && !q.rnr.waiting {
		r := q.sq.first()
		q.rnr.kicked = false
		q.mu.Unlock()
		status := q.execute(r)
		q.mu.Lock()
		if status == statusNotReady {
			status = q.waitReadyLocked()
			if status == statusNotReady {
				continue
			}
		}
		q.rnr.endLocked()
		q.completeLocked(r, status)
		if status != hca.WCSuccess {
			q.mu.Unlock()
			q.fail()
			q.mu.Lock()
		}
	}
	q.driving = false
	if q.state == hca.QPError {
		q.flushLocked()
	}
	q.idle.Broadcast()
}

// completeLocked takes the first request out of the send queue.
func (q *queuePair) completeLocked(r *request, status hca.WCStatus) {
	wc := hca.WC{ID: r.wr.ID, Status: status, QPN: q.num}
	c := &q.dev.count
	switch r.wr.Op {
	case hca.RDMAWrite, hca.RDMAWriteWithImm:
		wc.Op = hca.WCRDMAWrite
		add(&c.writes, status)
	case hca.RDMARead:
		wc.Op, wc.Len = hca.WCRDMARead, r.total
		add(&c.reads, status)
	case hca.AtomicCmpSwap, hca.AtomicFetchAdd:
		wc.Op, wc.Len = hca.WCAtomic, r.total
		add(&c.atomics, status)
	default:
		wc.Op = hca.WCSend
		add(&c.sends, status)
	}
	if status == hca.WCSuccess {
		c.bytes.Add(r.total)
	}
	signal := status != hca.WCSuccess || !r.wr.Unsignaled
	q.sq.pop()
	if signal {
		q.sendCQ.push(wc)
	}
}
