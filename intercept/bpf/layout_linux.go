//go:build linux && (amd64 || arm64)

package bpf

import (
	"sync/atomic"
	"unsafe"
)

// What the programs in the kernel and this process share is one block of
// memory: the only element of an array map, mapped here. These are its places,
// in bytes. Every word is 64 bits and atomic on both sides; the programs use
// atomics that order everything before and after them.
const (
	atCounter = 0   // the monitor's counter, alone on two cache lines
	atClaim   = 128 // positions of the ring given out to writers
	atActive  = 256 // operations under way
	atSpill   = 264 // of these, those that found no slot
	atBroken  = 272 // one found no room at all: nothing can be told any more
	atBell    = 384 // 1: the bell has been rung and not been answered
	atAnswer  = 392 // what a program that is run once, at the start, answers
	atAsked   = 400 // and what it is asked
	atBlind   = 408 // times that a thread of ours ran where the entries of its calls were passed by
	atFiles   = 416 // 1: memory of a file has been watched
	atCounts  = 512 // events, eight words by hca.Cause
	atOps     = 4096
	atRing    = atOps + maxOps*opSize
)

const (
	opSize  = 64
	maxOps  = 1024 // operations under way that are known one by one: 64 KiB
	probes  = 16   // slots that a thread tries before it spills
	slot    = 32   // bytes of an event in the ring
	spilled = 4096 // operations under way that may find no slot
)

// op is a slot of the table of operations under way. A thread is in one system
// call at a time and has at most one.
type op struct {
	owner    atomic.Uint64 // thread that took it, 0: free
	lo, hi   atomic.Uint64
	lo2, hi2 atomic.Uint64 // of mremap and a second range, else 0
	general  atomic.Uint64 // see guard_linux.go
	_        [2]uint64
}

// shared is the mapped block.
type shared struct {
	mem  unsafe.Pointer
	size uintptr
	ring int // slots
}

func sharedSize(slots, cpus int) uintptr {
	const page = 64 << 10 // whole pages of any size that these processors have
	return (uintptr(rowsAt(slots)+cpus*rowSize) + page - 1) &^ (page - 1)
}

func (s *shared) word(at uintptr) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Add(s.mem, at)) }

func (s *shared) op(i int) *op { return (*op)(unsafe.Add(s.mem, atOps+i*opSize)) }
