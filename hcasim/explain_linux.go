package hcasim

import (
	"errors"
	"fmt"

	"example.com/holdfast/hca"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// explainPin turns io_uring's refusal to pin r into words.
func explainPin(err error, r hca.Range) error {
	switch {
	case errors.Is(err, unix.ENOMEM):
		return noMemory("all processes of the user together, and this one")
	case errors.Is(err, unix.EOVERFLOW):
		return &hca.OpError{Detail: "its last page is the last of the address space", Err: hca.ErrBadAddress}
	case errors.Is(err, unix.EFAULT), errors.Is(err, unix.EOPNOTSUPP):
		if e := explainMemory(r, true, true); e != nil {
			return e
		}
		return &hca.OpError{Detail: "the kernel cannot pin it: " + err.Error(), Err: hca.ErrBadAddress,
			Hint: "an on-demand registration works"}
	}
	return err
}

// noMemory names the limit, for whom it counts, and how much of it this process
// uses.
func noMemory(whom string) error {
	e := &hca.OpError{Err: hca.ErrNoMemory, Hint: "raise the limit (ulimit -l, LimitMEMLOCK=), pin less, or register on demand"}
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim); err == nil {
		e.Detail = "RLIMIT_MEMLOCK is " + hca.Bytes(lim.Cur).String()
	}
	if p, err := procfs.Self(); err == nil {
		if s, err := p.NewStatus(); err == nil {
			e.Detail += fmt.Sprintf(" for %s has %s pinned and %s locked", whom,
				hca.Bytes(s.VmPin), hca.Bytes(s.VmLck))
		}
	}
	return e
}

// explainMemory says which part of r is in the way of a registration that
// writes or only reads, nil if none is by now. always says that what pins
// always pins for writing.
func explainMemory(r hca.Range, writes, always bool) error {
	p, err := procfs.Self()
	if err != nil {
		return nil // the caller has a word for it without the maps
	}
	maps, err := p.ProcMaps()
	if err != nil {
		return nil
	}
	at := r.Addr
	for _, m := range maps {
		start, end := uint64(m.StartAddr), uint64(m.EndAddr)
		if end <= at {
			continue
		}
		if start > at {
			break
		}
		piece := hca.Range{Addr: at, Len: min(end, r.End()) - at}
		switch {
		case !m.Perms.Read:
			return &hca.OpError{Detail: piece.String() + " of it cannot be read", Err: hca.ErrBadAddress}
		case writes && !m.Perms.Write:
			e := &hca.OpError{Detail: piece.String() + " of it is read-only", Err: hca.ErrBadAddress}
			if always {
				e.Hint = "io_uring pins always for writing: an on-demand registration for reading works"
			}
			return e
		case always && m.Perms.Shared && m.Inode != 0:
			return &hca.OpError{Detail: piece.String() + " of it maps the file " + m.Pathname + ", which this kernel does not pin for writing",
				Err: hca.ErrBadAddress, Hint: "an on-demand registration of it works"}
		}
		if at = end; at >= r.End() {
			return nil
		}
	}
	return &hca.OpError{Detail: fmt.Sprintf("nothing is mapped at %#x", at), Err: hca.ErrBadAddress}
}
