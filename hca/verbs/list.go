//go:build linux && cgo && verbs

package verbs

// #include "glue.h"
import "C"

import (
	"syscall"
	"unsafe"

	"example.com/holdfast/hca"
)

// List names the adapters that libibverbs finds, in its order. None is an
// empty list and no error.
func List() ([]string, error) {
	var names []string
	err := eachDevice(func(_ *C.struct_ibv_device, name string) bool {
		names = append(names, name)
		return true
	})
	return names, err
}

// eachDevice shows the devices to visit, as long as it answers true. They are
// gone when eachDevice returns.
func eachDevice(visit func(*C.struct_ibv_device, string) bool) error {
	var list **C.struct_ibv_device
	n := C.hf_list(&list)
	if n < 0 {
		kind := error(nil)
		if e := syscall.Errno(-n); e == syscall.ENOSYS || e == syscall.ENOENT {
			kind = hca.ErrNotSupported
		}
		return &hca.OpError{Op: "list adapters", Err: callFailed("ibv_get_device_list", int(n), kind),
			Hint: "load the modules ib_uverbs and the adapter's own"}
	}
	defer C.ibv_free_device_list(list)
	for _, dev := range unsafe.Slice(list, int(n)) {
		if !visit(dev, C.GoString(C.ibv_get_device_name(dev))) {
			return nil
		}
	}
	return nil
}

// openContext opens the adapter of that name, or of no name the first that
// opens and has an active port.
func openContext(want string) (*C.struct_ibv_context, string, error) {
	var ctx *C.struct_ibv_context
	var name string
	var failure error
	seen := 0
	err := eachDevice(func(dev *C.struct_ibv_device, n string) bool {
		if want != "" && n != want {
			return true
		}
		seen++
		var c *C.struct_ibv_context
		if r := C.hf_open(dev, &c); r != 0 {
			failure = &hca.OpError{Op: "open", Device: n, Err: callFailed("ibv_open_device", int(r), nil),
				Hint: "the process needs leave to open /dev/infiniband/uverbs*"}
			return want == ""
		}
		if want == "" && activePort(c) == 0 {
			failure = &hca.OpError{Op: "open", Device: n, Detail: "no active port", Err: hca.ErrNotSupported}
			C.hf_close(c)
			return true
		}
		ctx, name = c, n
		return false
	})
	switch {
	case err != nil:
		return nil, "", err
	case ctx != nil:
		return ctx, name, nil
	case failure != nil:
		return nil, "", failure
	}
	detail := "there is no RDMA adapter"
	if want != "" {
		detail = "there is no such adapter"
	}
	return nil, "", &hca.OpError{Op: "open", Device: want, Detail: detail, Err: hca.ErrNotSupported,
		Hint: "ibv_devices lists the adapters; Soft-RoCE makes one of a network device: rdma link add rxe0 type rxe netdev eth0"}
}

// activePort is the first active port of the adapter, 0 if there is none.
func activePort(ctx *C.struct_ibv_context) int {
	var caps C.struct_hf_caps
	if C.hf_query(ctx, &caps) != 0 {
		return 0
	}
	for i := 1; i <= int(caps.ports); i++ {
		var p C.struct_hf_port
		if C.hf_query_port(ctx, C.int(i), &p) == 0 && p.state == C.IBV_PORT_ACTIVE {
			return i
		}
	}
	return 0
}
