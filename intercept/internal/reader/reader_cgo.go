//go:build linux && cgo && (amd64 || arm64 || riscv64 || loong64)

package reader

// #cgo CFLAGS: -O2 -Wall -Wextra -Wno-unused-parameter
// #cgo LDFLAGS: -lpthread
// #include "reader.h"
import "C"

import (
	"runtime"
	"syscall"
	"unsafe"

	"example.com/holdfast/hca"
)

// Available says that this build has the thread.
const Available = true

// What reader.c takes for granted.
const (
	_ = uint(hca.CauseUnmap-1) + uint(1-hca.CauseUnmap)
	_ = uint(hca.CauseRemap-2) + uint(2-hca.CauseRemap)
	_ = uint(hca.CauseDiscard-3) + uint(3-hca.CauseDiscard)
	_ = uint(hca.CounterStep-1<<16) + uint(1<<16-hca.CounterStep)
	_ = uint(unsafe.Sizeof(Stats{})-8*C.HF_STATS) + uint(8*C.HF_STATS-unsafe.Sizeof(Stats{}))
)

// Reader is a running thread.
type Reader struct {
	c    *C.struct_hf_reader
	pins runtime.Pinner
}

// Start starts the thread on non-blocking userfaultfd descriptors, at most 32.
// It ends when stop, an eventfd, is written, which Stop does; it writes to
// wake, a non-blocking eventfd, after events became visible (Shared.Rung says
// when not). On an error,
// which is the errno of pthread_create, nothing was started and the
// descriptors are still the caller's.
func Start(sh Shared, fds []int, stop, wake int) (*Reader, error) {
	r := &Reader{}
	r.pins.Pin(sh.Counter)
	r.pins.Pin(sh.Ring.Head)
	r.pins.Pin(unsafe.SliceData(sh.Ring.Slots))
	r.pins.Pin(sh.Stats)
	r.pins.Pin(sh.Rung)
	word := func(p *atomicWord) *C.uint64_t { return (*C.uint64_t)(unsafe.Pointer(p)) }
	shared := C.struct_hf_shared{
		counter: word(sh.Counter),
		claim:   word(&sh.Ring.Head.Claim),
		done:    word(&sh.Ring.Head.Done),
		slots:   word(&sh.Ring.Slots[0].Addr),
		mask:    C.uint64_t(len(sh.Ring.Slots) - 1),
		stats:   word(&sh.Stats.Reads),
		rung:    word(sh.Rung),
	}
	cfds := make([]C.int, len(fds))
	for i, fd := range fds {
		cfds[i] = C.int(fd)
	}
	// The pointers are handed over inside a struct by value: C may keep them
	// because they are pinned.
	if errno := C.hf_start(&r.c, shared, unsafe.SliceData(cfds), C.int(len(fds)), C.int(stop), C.int(wake)); errno != 0 {
		r.pins.Unpin()
		return nil, syscall.Errno(errno)
	}
	return r, nil
}

// Stop ends the thread, which closes the descriptors it reads, and waits for
// it. Call it once. The eventfds stay open: they are the caller's.
func (r *Reader) Stop() {
	C.hf_stop(r.c)
	r.pins.Unpin()
}
