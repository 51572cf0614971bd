//go:build linux && (amd64 || arm64)

package bpf

// busy reports whether an operation under way touches [lo,hi). It reads the
// table that the programs write, without a system call and without a lock.
//
// Whoever asks has read the counter before, settled, as g. An operation that g
// counts had its slot before g was raised, and has it until it is over: it is
// found here. One that g does not count may be missed, or be half written: its
// event comes after g and undoes what is registered meanwhile.
func (s *shared) busy(lo, hi uint64) bool {
	if s.word(atBroken).Load() != 0 {
		return true
	}
	if s.word(atActive).Load() == 0 {
		return false
	}
	if s.word(atSpill).Load() != 0 {
		return true
	}
	for i := range maxOps {
		o := s.op(i)
		if o.owner.Load() == 0 {
			continue
		}
		if o.lo.Load() < hi && lo < o.hi.Load() || o.lo2.Load() < hi && lo < o.hi2.Load() {
			return true
		}
	}
	return false
}
