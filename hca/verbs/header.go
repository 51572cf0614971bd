//go:build linux && cgo && verbs

package verbs

// #include "glue.h"
import "C"

import (
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
)

// headerLen is how many bytes of global routing header come before the payload
// of a received datagram (ibv_post_recv(3)).
const headerLen = 40

// scratch is registered memory of the device's own. The first element of every
// datagram receive is here, so that the header, which nobody reads, does not
// end up in the caller's buffer.
type scratch struct {
	mem []byte
	ptr *C.struct_ibv_mr
}

// needHeader sees to it that there is a place for headers.
func (d *device) needHeader() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.header != nil {
		return nil
	}
	mem, err := unix.Mmap(-1, 0, int(d.attr.PageSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return d.op("new queue pair", err)
	}
	s := &scratch{mem: mem}
	r := hca.RangeOf(mem)
	if e := C.hf_reg(d.pd, C.uint64_t(r.Addr), C.uint64_t(r.Len), C.int(hca.LocalWrite), &s.ptr); e != 0 {
		_ = unix.Munmap(mem)
		return d.failed("new queue pair", "ibv_reg_mr", int(e))
	}
	d.header = s
	return nil
}

func (s *scratch) sge() hca.SGE {
	return hca.SGE{Addr: hca.RangeOf(s.mem).Addr, Len: headerLen, LKey: uint32(s.ptr.lkey)}
}

func (s *scratch) free(d *device) error {
	if e := C.hf_dereg(s.ptr); e != 0 {
		return d.failed("close", "ibv_dereg_mr", int(e))
	}
	return unix.Munmap(s.mem)
}
