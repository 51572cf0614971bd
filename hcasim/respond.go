package hcasim

import "example.com/holdfast/hca"

// recvResult is what a transfer did to the responder.
type recvResult struct {
	untouched bool // no receive was consumed; the rest but fail does not hold
	fail      bool // the queue pair goes into error although no receive fails
	status    hca.WCStatus
	op        hca.WCOp
	len       uint64
	wr        *hca.SendWR
}

// begin lets the driver of from into q as the responder. From then to end the
// first receive stays where it is and nothing is flushed from the receive
// queue. It answers statusNotReady, having noted that from waits, if a receive
// is needed and there is none.
func (q *queuePair) begin(from *queuePair, takesRecv bool) hca.WCStatus {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != hca.QPReady || q.peer != from {
		return hca.WCRetryExcErr
	}
	if takesRecv && q.rq.n == 0 {
		q.starved = true
		return statusNotReady
	}
	q.inbound = true
	return hca.WCSuccess
}

// end completes the receive, if one was consumed, and lets the driver out.
func (q *queuePair) end(res recvResult) {
	q.mu.Lock()
	q.inbound = false
	fail := res.fail
	if !res.untouched {
		wc := hca.WC{ID: q.rq.first().wr.ID, Status: res.status, Op: res.op, QPN: q.num, Len: res.len}
		if res.status == hca.WCSuccess {
			if res.wr.Op != hca.Send {
				wc.Imm, wc.HasImm = res.wr.Imm, true
			}
			q.dev.count.recvs.Add(1)
		} else {
			fail = true
		}
		q.rq.pop()
		q.recvCQ.push(wc)
	}
	if q.state == hca.QPError {
		q.flushLocked()
	}
	if q.closed {
		q.idle.Broadcast()
	}
	q.mu.Unlock()
	if fail {
		q.fail()
	}
}

// fail moves the queue pair to error, flushes what is queued, and lets a peer
// that waits for a receive here find out.
func (q *queuePair) fail() {
	q.mu.Lock()
	q.state = hca.QPError
	q.rnr.endLocked()
	q.flushLocked()
	starved := q.starved
	q.starved = false
	q.mu.Unlock()
	if starved {
		q.peer.kick()
	}
}

// flushLocked completes everything queued with WCWRFlushErr, except what a
// driver is executing right now: that one completes by itself, first, and then
// the driver comes here.
func (q *queuePair) flushLocked() {
	for !q.driving && q.sq.n > 0 {
		id := q.sq.first().wr.ID
		q.sq.pop()
		q.sendCQ.push(hca.WC{ID: id, Status: hca.WCWRFlushErr, QPN: q.num})
	}
	for !q.inbound && q.rq.n > 0 {
		id := q.rq.first().wr.ID
		q.rq.pop()
		q.recvCQ.push(hca.WC{ID: id, Status: hca.WCWRFlushErr, Op: hca.WCRecv, QPN: q.num})
	}
}
