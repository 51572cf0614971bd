// Package intercept tells what happened to the address space: which memory
// went away, or is about to. A registration cache lives from it, because a
// registration that outlives its memory points the adapter at pages that
// nobody owns.
//
// # Sources
//
// A [Monitor] has up to two sources. Explicit calls always work: memory mapped
// through [Monitor.Mmap], or made known with [Monitor.Adopt], is owned, and its
// end is announced before it comes and settled after ([Monitor.Begin] is for
// hosts with hooks of their own). The kernel source, userfaultfd, sees whoever
// unmaps, moves or discards any memory of the process, but only after the fact;
// [Monitor.UnderWay] closes that gap. [Auto] takes both if it can. Each source
// is tested with memory of its own before it is trusted.
//
// # The counter
//
// One 64-bit word that a hit reads: the low 16 bits say how many sources have
// taken an event out of the kernel and not made it visible yet, the rest counts
// events. A source first raises the low bits, takes events, puts them into the
// ring, and then counts them and lowers the low bits in one addition. An
// announcement puts its event into the ring and then counts it; nothing of it
// is ever in between. So a settled value counts only events that every feed
// can read.
//
// # Life
//
// [Userfault], [UserfaultConfig], [Explicit] or [Auto] make a Monitor; it runs
// a C thread that reads events (userfaultfd only) and goroutines that wake
// subscribers. Any number of caches use it. Close it after them.
//
// # Concurrency
//
// Everything may be called at any time by any number of goroutines, except one
// [hca.Feed], whose Next is for one goroutine at a time. There are three locks,
// and none is taken while another is held, except that subs is held while wake
// functions run, which must not block:
//
//	own     the ledger of explicit calls and the writing end of their ring;
//	        never held over a system call
//	kernel  what is known of watched mappings; held over the system calls of
//	        Watch, which wait for nobody but the kernel
//	subs    the feeds
//
// The reader thread takes none of them, nor does Next, UnderWay or a read of
// the counter. That matters: whoever unmaps watched memory waits inside the
// kernel until the thread has read the event, and that can be the Go runtime
// with the world stopped.
//
// # Files
//
// monitor.go what a Monitor is; ledger.go explicit announcements; calls_linux.go
// the system calls that announce themselves; watch.go which kind memory is;
// kernel.go what is known through userfaultfd; rejoin.go what watching may cut;
// mapping_linux.go how mappings are looked up; userfault_linux.go how it starts;
// feed.go how events are read; selftest.go how sources are tried; spans.go sets
// of ranges. internal/ring is the ring, internal/reader the C thread,
// internal/uffd the kernel's interface.
package intercept
