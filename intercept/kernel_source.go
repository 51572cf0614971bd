package intercept

import (
	"fmt"
	"strings"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept/internal/source"
)

// userfaultfd as one of several kernel sources: see source.Source.
var _ source.Source = (*kernel)(nil)

func (k *kernel) Events() source.Events         { return k.ring }
func (k *kernel) Watch(lo, hi uint64) hca.Watch { return k.watch(lo, hi) }
func (k *kernel) UnderWay(domains uint32) bool  { return k.changing(domains) }
func (k *kernel) CatchUp()                      { k.catchUp() }
func (k *kernel) Stop()                         { k.stop() }

// Exact is false: events come after the memory has gone, and of discards
// nothing tells when they are done.
func (k *kernel) Exact() bool { return false }

func (k *kernel) Kind(lo, hi uint64) hca.MemKind {
	if k.knows(lo, hi) {
		return hca.MemForeign
	}
	return hca.MemUnknown
}

func (k *kernel) Counts() source.Counts {
	c := source.Counts{
		Unmaps: k.stats.Unmaps.Load(), Remaps: k.stats.Remaps.Load(), Discards: k.stats.Discards.Load(),
		Reads: k.stats.Reads.Load(),
	}
	k.mu.Lock()
	c.Known, c.Taints, c.Changed = len(k.known.s), len(k.taint.s), k.changed
	k.mu.Unlock()
	return c
}

func (k *kernel) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "userfaultfd on %d descriptors and explicit calls: sees munmap, mremap, brk and madvise by anybody", len(k.fds))
	b.WriteString("; not shmdt, nor truncation of a file behind a mapping, mprotect or MADV_GUARD_INSTALL")
	if k.strict {
		b.WriteString("; strict: owned memory is watched too")
	}
	if errno := k.fault(); errno != nil {
		fmt.Fprintf(&b, "; BROKEN, nothing is kept any more: the reader ended with %v", errno)
	}
	return b.String()
}
