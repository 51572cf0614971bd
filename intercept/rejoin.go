package intercept

import (
	"math/bits"

	"example.com/holdfast/intercept/internal/uffd"
)

// Registering a range cuts the mappings that reach across its ends in two,
// and that is seen by whoever owns them: an mremap over the cut fails with
// EFAULT. A mapping that was looked up is registered as a whole, but between
// the two somebody may have put another in its place that reaches further:
//
//	looked up     |------------|
//	then              xxxxxxxxxxxxx    x mapped over its end, one with the rest
//	registered    |------------|xxx    cut
//
// No call looks up and registers in one step, so this cannot be excluded. What
// can be done is to undo it at once. A cut leaves a mapping of the same kind on
// the other side that is not registered, and the kernel makes two mappings
// that touch one again as soon as they are alike in everything, their
// userfaultfd included. So such a neighbour is registered too.
//
// Two mappings may touch, be of one kind as far as the kernel tells, and yet
// never have been one (private memory that was written before it touched). The
// neighbour is then watched although nobody asked, which is harmless: its
// munmap waits for the reader. It cannot be let go again, because by then its
// place may be taken by memory that was watched elsewhere and moved there.
//
// What is left is an mremap within the few microseconds between: see
// docs/coherence.md, "What watching changes".

// rejoin undoes what registering vma on the one channel of dom may have cut,
// and gives what was registered in all. Whatever takes a part of that away is
// from then on reported on that channel. The caller holds mu.
func (k *kernel) rejoin(vma uffd.MappingInfo, dom uint32) span {
	fd := k.fds[bits.TrailingZeros32(dom)]
	for range tries {
		grown := false
		for _, at := range [2]uint64{vma.Start - 1, vma.End} {
			next, ok, err := k.mapping(at)
			if err != nil || !ok || !vma.Continues(next) && !next.Continues(vma) {
				continue
			}
			k.renew(next.Start, next.End)
			if uffd.Register(fd, next.Start, next.End) != nil {
				continue // it is another's, or gone
			}
			lo, hi := min(vma.Start, next.Start), max(vma.End, next.End)
			if now, ok, err := k.mapping(at); err == nil && ok && now.Start <= lo && hi <= now.End {
				// They are one, and so they were. It may have been cut off again
				// further on.
				vma.Start, vma.End, vma.Offset = lo, hi, min(vma.Offset, next.Offset)
				k.rejoined++
				grown = true
			}
		}
		if !grown {
			break
		}
	}
	return span{vma.Start, vma.End, dom}
}
