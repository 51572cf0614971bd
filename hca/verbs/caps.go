//go:build linux && cgo && verbs

package verbs

// #include "glue.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
)

// maxWR is what the slot number in a wireID can tell apart in one queue.
const maxWR = 1 << 22

// maxLen bounds one registration where the adapter names no bound: the part of
// the address space that a process has, on machines with 48-bit addresses.
const maxLen = 1 << 47

// findOut fills in what the device can do: what the adapter says, and where
// adapter, kernel and library must all play along, what a try shows.
func (d *device) findOut(trust bool) error {
	c := &d.caps
	page := uint64(os.Getpagesize())
	d.attr = hca.Attr{
		Name: d.attr.Name, PageSize: page,
		MaxMR: int(c.max_mr), MaxMRSize: min(uint64(c.max_mr_size), maxLen), MaxMsg: d.port.maxMsg,
		MaxQP: int(c.max_qp), MaxCQ: int(c.max_cq), MaxCQE: int(c.max_cqe),
		MaxSGE: min(int(c.max_sge), C.HF_MAX_SGE), MaxWR: min(int(c.max_qp_wr), maxWR),
		StalePins: true,
	}
	odp := &d.attr.ODP
	const known = hca.ODPSend | hca.ODPRecv | hca.ODPWrite | hca.ODPRead | hca.ODPAtomic | hca.ODPSRQRecv
	odp.RC, odp.UD = hca.ODPOps(c.odp_rc)&known, hca.ODPOps(c.odp_ud)&known
	odp.UC, odp.XRC = hca.ODPOps(c.odp_uc)&known, hca.ODPOps(c.odp_xrc)&known
	var notes []string
	if c.odp_general&C.IBV_ODP_SUPPORT != 0 {
		note, err := d.tryODP(page, trust)
		if err != nil {
			return err
		}
		notes = append(notes, note...)
	} else {
		notes = append(notes, "no on-demand paging")
	}
	note, err := d.tryRereg(page)
	if err != nil {
		return err
	}
	notes = append(notes, note)
	// iWARP has no datagrams, and answers with one errno or another.
	if d.attr.UD = C.hf_try_qp(d.ctx, d.pd, C.IBV_QPT_UD) == 0; !d.attr.UD {
		notes = append(notes, "no datagrams")
	}
	link := "InfiniBand"
	if d.port.ethernet {
		link = d.port.gidKind
	}
	d.attr.Form = fmt.Sprintf("libibverbs, port %d, %s; %s", d.port.number, link, strings.Join(notes, ", "))
	return nil
}

// tryODP registers a page on demand, advises it, moves bytes (proveODP), and
// registers the whole address space where the adapter says it can. A refusal is
// a finding; what else goes wrong is an error.
func (d *device) tryODP(page uint64, trust bool) ([]string, error) {
	odp := &d.attr.ODP
	odp.Support = true // so that registering does not refuse by itself
	b, err := unix.Mmap(-1, 0, int(page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, d.op("open", err)
	}
	defer func() { _ = unix.Munmap(b) }()
	mr, err := d.register("open", hca.RangeOf(b), hca.LocalWrite|hca.OnDemand)
	if err != nil {
		if !refusal(err) {
			return nil, err
		}
		*odp = hca.ODPCaps{}
		return []string{"on-demand paging offered but refused"}, nil
	}
	notes := []string{"on-demand paging of ranges"}
	odp.Prefetch = true // the same
	err = d.advise("open", hca.Prefetch, []hca.SGE{{Addr: mr.Range.Addr, Len: page, LKey: mr.LKey}})
	if errors.Is(err, hca.ErrAgain) {
		err = nil // it is known, and that is what was asked
	}
	if err != nil {
		odp.Prefetch = false
		notes = append(notes, "no prefetch (library or kernel lacks it)")
	} else {
		notes = append(notes, "prefetch")
	}
	if e := d.deregister("open", mr); e != nil {
		return nil, e
	}
	if err != nil && !refusal(err) {
		return nil, err
	}
	d.proved = true
	if d.softRoCE() {
		right, ran, err := d.proveODP()
		switch {
		case err != nil:
			return nil, err
		case !ran:
			notes[0] += " (not proved: no transfer went through)"
		case !right && trust:
			notes[0] += " (right for whole pages only, and trusted all the same)"
		case !right:
			*odp = hca.ODPCaps{}
			return []string{"no on-demand paging: this kernel's moves bytes to wrong places and was ruled out"}, nil
		}
		d.proved = ran && right
	}
	if d.caps.odp_general&C.IBV_ODP_SUPPORT_IMPLICIT == 0 {
		return append(notes, "not of the whole address space"), nil
	}
	odp.Implicit = true // the same
	mr, err = d.register("open", hca.Whole, hca.LocalWrite|hca.OnDemand)
	if err != nil {
		odp.Implicit = false
		if !refusal(err) {
			return nil, err
		}
		return append(notes, "whole address space offered but refused"), nil
	}
	return append(notes, "whole address space"), d.deregister("open", mr)
}

// refusal says whether an error is one of the ways in which kernels and
// libraries say that they do not know something.
func refusal(err error) bool {
	return errors.Is(err, hca.ErrNotSupported) || errors.Is(err, hca.ErrInvalid)
}
