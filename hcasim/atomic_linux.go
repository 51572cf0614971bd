package hcasim

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"example.com/holdfast/hca"
	"golang.org/x/sys/unix"
)

// cpuAtomic does an atomic on memory that may not be there. The kernel is
// asked first to make the page ready for writing, which turns what is not
// mapped, or not for writing, into an errno. If it goes away between that and
// the instruction, the fault is a panic, which is caught.
func cpuAtomic(addr uint64, wr *hca.SendWR) (old uint64, bad side) {
	page := hca.Range{Addr: addr, Len: atomicLen}.Pages(uint64(unix.Getpagesize()))
	if madvise(page, unix.MADV_POPULATE_WRITE) != nil {
		return 0, sideTarget
	}
	return atomicAt(addr, wr)
}

// atomicAt is the instruction. The kernel has no other word for memory that
// went away than a signal, which the runtime makes a panic here.
func atomicAt(addr uint64, wr *hca.SendWR) (old uint64, bad side) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case runtime.Error: // the fault
			old, bad = 0, sideTarget
		default:
			panic(r)
		}
	}()
	p := *(**uint64)(unsafe.Pointer(&addr)) // no Go object: a number that a peer sent
	if wr.Op == hca.AtomicFetchAdd {
		return atomic.AddUint64(p, wr.CompareAdd) - wr.CompareAdd, sideNone
	}
	for {
		switch old := atomic.LoadUint64(p); {
		case old != wr.CompareAdd:
			return old, sideNone
		case atomic.CompareAndSwapUint64(p, old, wr.Swap):
			return old, sideNone
		}
	}
}
