package hcasim

import (
	"errors"
	"fmt"

	"example.com/holdfast/hca"
	"example.com/holdfast/hcasim/internal/uring"
	"golang.org/x/sys/unix"
)

// newHost takes the full form where the machine allows it, else the lesser
// one, with the reason.
func newHost(cfg FabricConfig) (host, error) {
	if cfg.Lesser {
		return newLesserHost("asked for")
	}
	h, err := newRingHost()
	var why string
	switch {
	case err == nil:
		return h, nil
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		why = "io_uring_setup is forbidden (EPERM): in a container allow io_uring_setup, io_uring_enter and " +
			"io_uring_register, as with docker run --security-opt seccomp=unconfined; else see sysctl kernel.io_uring_disabled"
	case errors.Is(err, unix.ENOSYS):
		why = "the kernel has no io_uring (ENOSYS)"
	case errors.Is(err, uring.ErrTooOld):
		why = err.Error()
	case errors.Is(err, unix.ENOMEM):
		return nil, &hca.OpError{Op: "open fabric", Detail: err.Error(), Err: hca.ErrNoMemory}
	default:
		return nil, fmt.Errorf("open fabric: %w", err)
	}
	return newLesserHost(why)
}

// describeMemory fills in what both forms have in common: the kernel faults
// pages in for the adapter as it does for a CPU.
func describeMemory(a *hca.Attr) {
	const ops = hca.ODPSend | hca.ODPRecv | hca.ODPWrite | hca.ODPRead | hca.ODPAtomic
	a.PageSize = uint64(unix.Getpagesize())
	a.ODP = hca.ODPCaps{Support: true, Implicit: true, Prefetch: hasPopulate(), RC: ops}
}
