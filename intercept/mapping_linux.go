package intercept

import (
	"errors"
	"syscall"

	"github.com/prometheus/procfs"

	"example.com/holdfast/intercept/internal/uffd"
)

// mapping finds the mapping that holds addr.
func (k *kernel) mapping(addr uint64) (vma span, ok bool, err error) {
	if !k.noQuery {
		vma.lo, vma.hi, err = uffd.Mapping(k.maps, addr)
		switch {
		case err == nil:
			return vma, true, nil
		case errors.Is(err, syscall.ENOENT):
			return vma, false, nil
		case !errors.Is(err, syscall.ENOTTY):
			return vma, false, err
		}
		k.noQuery = true // Linux 6.7 to 6.10
	}
	self, err := procfs.Self()
	if err != nil {
		return vma, false, err
	}
	all, err := self.ProcMaps()
	if err != nil {
		return vma, false, err
	}
	for _, p := range all {
		if uint64(p.StartAddr) <= addr && addr < uint64(p.EndAddr) {
			return span{lo: uint64(p.StartAddr), hi: uint64(p.EndAddr)}, true, nil
		}
	}
	return vma, false, nil
}
