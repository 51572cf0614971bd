package intercept

import (
	"errors"
	"syscall"

	"github.com/prometheus/procfs"

	"example.com/holdfast/intercept/internal/uffd"
)

// mapping finds the mapping that holds addr.
func (k *kernel) mapping(addr uint64) (vma uffd.MappingInfo, ok bool, err error) {
	if !k.noQuery {
		vma, err = uffd.Query(k.maps, addr)
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
			return listed(p), true, nil
		}
	}
	return vma, false, nil
}

// listed is a line of /proc/self/maps as PROCMAP_QUERY would answer it.
func listed(p *procfs.ProcMap) uffd.MappingInfo {
	vma := uffd.MappingInfo{
		Start: uint64(p.StartAddr), End: uint64(p.EndAddr),
		Kind:   uffd.MappingKind{Inode: p.Inode, Dev: p.Dev},
		Offset: uint64(p.Offset),
	}
	for flag, has := range map[uint64]bool{
		uffd.FlagRead: p.Perms.Read, uffd.FlagWrite: p.Perms.Write, uffd.FlagExec: p.Perms.Execute, uffd.FlagShared: p.Perms.Shared,
	} {
		if has {
			vma.Kind.Flags |= flag
		}
	}
	return vma
}
