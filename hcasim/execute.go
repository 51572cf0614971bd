package hcasim

import (
	"sync/atomic"

	"example.com/holdfast/hca"
)

// statusNotReady is no status of verbs: the peer has no receive posted, and
// the request is to be executed again later.
const statusNotReady hca.WCStatus = 1 << 31

// execute does one request, as far as the requester sees it: which memory,
// which rights, and which status for what can go wrong. The statuses are those
// that adapters give (InfiniBand specification, and what perftest and pyverbs
// see): own key, bounds, right or page: WCLocProtErr; the peer's: WCRemAccessErr
// for RDMA, WCRemOpErr for a receive; a receive too short: WCRemInvReqErr; a
// peer that is gone, in error or connected elsewhere: WCRetryExcErr.
func (q *queuePair) execute(r *request) hca.WCStatus {
	need := hca.LocalRead
	if r.wr.Op == hca.RDMARead || isAtomic(r.wr.Op) {
		need = hca.LocalWrite
	}
	var ok bool
	q.local, ok = q.dev.gather(q.local[:0], r.sges, r.total, need)
	defer releaseAll(q.local)
	if !ok {
		return hca.WCLocProtErr
	}
	takesRecv := r.wr.Op == hca.Send || r.wr.Op == hca.SendWithImm || r.wr.Op == hca.RDMAWriteWithImm
	if status := q.peer.begin(q, takesRecv); status != hca.WCSuccess {
		return status
	}
	switch {
	case r.wr.Op == hca.Send || r.wr.Op == hca.SendWithImm:
		return q.executeSend(r)
	case isAtomic(r.wr.Op):
		return q.executeAtomic(r)
	}
	return q.executeRDMA(r)
}

// executeSend fills the peer's oldest receive.
func (q *queuePair) executeSend(r *request) hca.WCStatus {
	p := q.peer
	recv := p.rq.first()
	if r.total > recv.total {
		p.end(recvResult{status: hca.WCLocLenErr})
		return hca.WCRemInvReqErr
	}
	var ok bool
	q.remote, ok = p.dev.gather(q.remote[:0], recv.sges, r.total, hca.LocalWrite)
	bad := sideTarget
	if ok {
		bad = moveAll(q.dev.fab.host, q.remote, q.local)
	}
	releaseAll(q.remote) // before the completion: who sees that may deregister without waiting
	switch bad {
	case sideNone:
		p.end(recvResult{status: hca.WCSuccess, op: hca.WCRecv, len: r.total, wr: &r.wr})
		return hca.WCSuccess
	case sideSource:
		p.end(recvResult{untouched: true})
		return hca.WCLocProtErr
	case sideTarget:
		p.end(recvResult{status: hca.WCLocProtErr})
		return hca.WCRemOpErr
	}
	p.end(recvResult{untouched: true})
	return hca.WCFatalErr
}

// executeRDMA reads or writes the peer's memory. A message of no bytes looks
// at no key.
func (q *queuePair) executeRDMA(r *request) hca.WCStatus {
	p := q.peer
	need := hca.RemoteWrite
	if r.wr.Op == hca.RDMARead {
		need = hca.RemoteRead
	}
	bad := sideNone
	if r.total > 0 {
		remote := [1]hca.SGE{{Addr: r.wr.Remote.Addr, Len: r.total, LKey: r.wr.Remote.RKey}}
		var ok bool
		q.remote, ok = p.dev.gather(q.remote[:0], remote[:], r.total, need)
		switch {
		case !ok:
			bad = sideTarget
		case need == hca.RemoteWrite:
			bad = moveAll(q.dev.fab.host, q.remote, q.local)
		default:
			switch bad = moveAll(q.dev.fab.host, q.local, q.remote); bad {
			case sideSource: // from here on target means the peer
				bad = sideTarget
			case sideTarget:
				bad = sideSource
			}
		}
		releaseAll(q.remote)
	}
	switch bad {
	case sideNone:
		if r.wr.Op == hca.RDMAWriteWithImm {
			p.end(recvResult{status: hca.WCSuccess, op: hca.WCRecvRDMAWithImm, len: r.total, wr: &r.wr})
		} else {
			p.end(recvResult{untouched: true})
		}
		return hca.WCSuccess
	case sideSource:
		p.end(recvResult{untouched: true})
		return hca.WCLocProtErr
	case sideTarget:
		// The responder of a reliable connection goes into error with the
		// refusal; its receives flush.
		p.end(recvResult{untouched: true, fail: true})
		return hca.WCRemAccessErr
	}
	p.end(recvResult{untouched: true})
	return hca.WCFatalErr
}

// gather checks the first n bytes of sges and takes their regions into use.
// What it appended has to be released even if it says no.
func (d *Device) gather(spans []span, sges []hca.SGE, n uint64, need hca.Access) ([]span, bool) {
	for _, s := range sges {
		if n == 0 {
			break
		}
		s.Len = min(s.Len, n)
		reg := d.fab.use(d, s.LKey, s.Range(), need)
		if reg == nil {
			return spans, false
		}
		spans = append(spans, span{reg, s.Addr, s.Len})
		n -= s.Len
	}
	return spans, true
}

func releaseAll(spans []span) {
	for i := range spans {
		spans[i].reg.release()
		spans[i].reg = nil
	}
}

// add counts a success.
func add(c *atomic.Uint64, status hca.WCStatus) {
	if status == hca.WCSuccess {
		c.Add(1)
	}
}
