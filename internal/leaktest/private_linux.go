package leaktest

import (
	"runtime"

	"github.com/prometheus/procfs"
)

// Private anonymous memory is what every runtime makes as it goes, and the kernel
// does not say for whom. The Go runtime says how much it has; libc's part is told
// by its shape. What is left over belongs to nobody known, and should not grow.
//
// The Go runtime's books are not exact: some megabytes come and go that they do not
// tell. So private memory counts from slack up. The project maps what it needs for itself shared,
// from files, or from rings, which compare finds to the page; private memory is
// the tests' own buffers.
//
// The race detector makes memory without saying how much: under it nothing of
// this is looked at.

// slack is how much private memory may have come from nobody known, in bytes,
// while the Go runtime has so much.
func slack(sys uint64) uint64 { return 8<<20 + sys/64 }

// private is how much private memory there is, in bytes, and how much of it the Go
// runtime has.
func private(maps []*procfs.ProcMap) (unknown, sys uint64) {
	if raceDetector {
		return 0, 0
	}
	for i, m := range maps {
		if m.Pathname == "" && !m.Perms.Shared && m.Perms.Write && !isStack(maps, i) && !isArena(maps, i) {
			unknown += size(m)
		}
	}
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return unknown - min(s.Sys, unknown), s.Sys
}

func isGuard(m *procfs.ProcMap) bool { return m.Pathname == "" && !m.Perms.Read && !m.Perms.Shared }

// isStack reports whether maps[i] is a stack of libc's threads, of which it keeps
// some after their threads have ended: it lies on a guard page.
func isStack(maps []*procfs.ProcMap, i int) bool {
	if i == 0 {
		return false
	}
	guard, m := maps[i-1], maps[i]
	return isGuard(guard) && size(guard) <= 64<<10 && guard.EndAddr == m.StartAddr && size(m) >= 64<<10 && size(m) <= 8<<20
}

// isArena reports whether maps[i] is the used part of an arena of glibc's malloc:
// 64 MiB of address space on a boundary of its own, and the rest not yet usable.
func isArena(maps []*procfs.ProcMap, i int) bool {
	const arena = 64 << 20
	m := maps[i]
	return m.StartAddr%arena == 0 && i+1 < len(maps) && isGuard(maps[i+1]) && maps[i+1].StartAddr == m.EndAddr && maps[i+1].EndAddr == m.StartAddr+arena
}
