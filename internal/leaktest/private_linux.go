//go:build !cgo && !race

package leaktest

import (
	"runtime"

	"github.com/prometheus/procfs"
)

// Private anonymous memory is what every runtime makes as it goes, and the kernel
// does not say for whom. The Go runtime says how much it has; what is left over
// belongs to nobody known, and should not grow.
//
// The Go runtime's books are not exact: some megabytes come and go that they do not
// tell. So private memory counts from slack up. The project maps what it needs for
// itself shared, from files, or from rings, which mappings finds to the page; private
// memory is the tests' own buffers.
//
// libc and the race detector do not say how much they have (threads' stacks alone are
// megabytes, and look like any memory since glibc 2.42), so with them nothing of this
// is looked at.
const seesPrivate = true

// slack is how much private memory may have come from nobody known, in bytes,
// while the Go runtime has so much.
func slack(sys uint64) uint64 { return 8<<20 + sys/64 }

// private is how much private memory there is that nobody is known to have, and how
// much the Go runtime has, in bytes.
func private(maps []*procfs.ProcMap) (unknown, sys uint64) {
	for _, m := range maps {
		if m.Pathname == "" && !m.Perms.Shared && m.Perms.Write {
			unknown += size(m)
		}
	}
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return unknown - min(s.Sys, unknown), s.Sys
}
