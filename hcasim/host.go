package hcasim

import "example.com/holdfast/hca"

// host is what differs between the forms of the adapter: the memory under it.
// Everything above it, keys, rights, queues, order and statuses, is shared.
// All methods may be called by any number of goroutines at once.
type host interface {
	// describe fills in what the form decides about a device.
	describe(a *hca.Attr)

	// pin makes the pages of r stay, in the given slot. The error is an
	// *hca.OpError without Op, Device and Range.
	pin(slot uint32, r hca.Range, a hca.Access) error
	unpin(slot uint32, r hca.Range) error

	// move copies src to dst, which are equally long and not empty, and says
	// on which side it could not go on. Part may have been copied then.
	move(dst, src span) side

	// atomic does the AtomicCmpSwap or AtomicFetchAdd of wr on the 8 bytes at
	// at, aligned, and answers what was there before. It is atomic against
	// every CPU and against other atomics of the adapter.
	atomic(at span, wr *hca.SendWR) (old uint64, bad side)

	// populate makes the pages of r ready, as Advise asks; r is whole pages.
	populate(r hca.Range, advice hca.Advice) error

	close() error
}

// span is memory of one region that a transfer may use.
type span struct {
	reg       *region
	addr, len uint64
}

// side says where a transfer failed.
type side uint8

const (
	sideNone   side = iota
	sideSource      // the memory to read from
	sideTarget      // the memory to write to
	sideWire        // the adapter itself
)

// moveAll copies src to dst, both lists of the same total length.
func moveAll(h host, dst, src []span) side {
	var d, s span
	for di, si := 0, 0; ; {
		if d.len == 0 {
			if di == len(dst) {
				return sideNone
			}
			d = dst[di]
			di++
		}
		if s.len == 0 {
			if si == len(src) {
				return sideNone
			}
			s = src[si]
			si++
		}
		n := min(d.len, s.len)
		if bad := h.move(span{d.reg, d.addr, n}, span{s.reg, s.addr, n}); bad != sideNone {
			return bad
		}
		d.addr, d.len = d.addr+n, d.len-n
		s.addr, s.len = s.addr+n, s.len-n
	}
}
