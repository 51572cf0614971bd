package leaktest

import (
	"testing"
	"unsafe"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Area says that [addr,addr+length) is address space that the test reserved, and
// in which it maps and unmaps as it likes. What is there of shared memory and of
// files is unmapped at the end of the test. Private memory is not: the test may
// have left a hole, in which that of a runtime lies by now.
func Area(t testing.TB, addr, length uint64) {
	t.Helper()
	t.Cleanup(func() {
		for _, m := range must(must(procfs.Self()).ProcMaps()) {
			lo, hi := max(addr, uint64(m.StartAddr)), min(addr+length, uint64(m.EndAddr))
			if lo >= hi || nameOf(m) == "" {
				continue
			}
			if err := unix.MunmapPtr(*(*unsafe.Pointer)(unsafe.Pointer(&lo)), uintptr(hi-lo)); err != nil {
				t.Errorf("leaktest: munmap of %s at %#x: %v", nameOf(m), lo, err)
			}
		}
	})
}
