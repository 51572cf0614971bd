package hcasim

import (
	"unsafe"

	"example.com/holdfast/hca"
)

const atomicLen = 8 // bytes that an atomic works on

func isAtomic(op hca.Op) bool { return op == hca.AtomicCmpSwap || op == hca.AtomicFetchAdd }

// executeAtomic changes 8 bytes of the peer's memory and brings the old value
// here. An address that is no multiple of 8 is a request that makes no sense
// to the peer.
func (q *queuePair) executeAtomic(r *request) hca.WCStatus {
	p, h := q.peer, q.dev.fab.host
	if r.wr.Remote.Addr%atomicLen != 0 {
		p.end(recvResult{untouched: true, fail: true})
		return hca.WCRemInvReqErr
	}
	remote := [1]hca.SGE{{Addr: r.wr.Remote.Addr, Len: atomicLen, LKey: r.wr.Remote.RKey}}
	var ok bool
	q.remote, ok = p.dev.gather(q.remote[:0], remote[:], atomicLen, hca.RemoteAtomic)
	bad := sideTarget
	if ok {
		q.oldValue, bad = h.atomic(q.remote[0], &r.wr)
	}
	releaseAll(q.remote)
	if bad == sideTarget {
		p.end(recvResult{untouched: true, fail: true})
		return hca.WCRemAccessErr
	}
	p.end(recvResult{untouched: true})
	if bad != sideNone {
		return hca.WCFatalErr
	}
	q.remote = append(q.remote[:0], span{&q.self, addrOf(&q.oldValue), atomicLen})
	switch moveAll(h, q.local, q.remote) {
	case sideNone:
		return hca.WCSuccess
	case sideTarget:
		return hca.WCLocProtErr // the peer's memory is changed all the same
	}
	return hca.WCFatalErr
}

func addrOf(v *uint64) uint64 { return uint64(uintptr(unsafe.Pointer(v))) }
