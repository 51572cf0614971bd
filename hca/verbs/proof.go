//go:build linux && cgo && verbs

package verbs

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
)

// softRoCE says whether the adapter is Linux's software one, rdma_rxe: its
// vendor number is nobody's.
func (d *device) softRoCE() bool { return d.caps.vendor_id == 0xffffff }

// proveODP moves bytes between two on-demand registrations, from the middle of
// a page to the middle of another and over the end of both, and answers
// whether they arrived where they should. ran is false where the transfer did
// not come to an end: that proves nothing.
//
// It is run on Soft-RoCE, where Linux 7.2 does not pass: its copy to and from
// on-demand pages (__rxe_odp_mr_copy) starts at the beginning of each page
// whatever the address is, and completes with success. What begins at the
// beginning of a page and is cut into packets of whole pages is right.
func (d *device) proveODP() (right, ran bool, err error) {
	page := int(d.attr.PageSize)
	mem, err := unix.Mmap(-1, 0, 4*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return false, false, d.op("open", err)
	}
	keep := func(e error) {
		if err == nil {
			err = e
		}
	}
	defer func() { keep(unix.Munmap(mem)) }()
	mr, err := d.register("open", hca.RangeOf(mem), hca.LocalWrite|hca.RemoteWrite|hca.OnDemand)
	if err != nil {
		return false, false, err
	}
	defer func() { keep(d.deregister("open", mr)) }()
	cq, err := d.NewCQ(8)
	if err != nil {
		return false, false, err
	}
	defer func() { keep(cq.Close()) }()
	cfg := hca.QPConfig{SendCQ: cq, MaxSend: 1, MaxRecv: 1, MaxSGE: 1}
	a, err := d.NewQP(cfg)
	if err != nil {
		return false, false, err
	}
	defer func() { keep(a.Close()) }()
	b, err := d.NewQP(cfg)
	if err != nil {
		return false, false, err
	}
	defer func() { keep(b.Close()) }()
	if a.Connect(b.Addr()) != nil || b.Connect(a.Addr()) != nil {
		return false, false, nil // the port does not reach itself
	}

	const from, to = 50, 200 // in their pages
	src, dst := mem[from:from+page], mem[2*page+to:3*page+to]
	for i := range src {
		src[i] = byte(i%251) + 1
	}
	r := hca.RangeOf(src)
	if err := a.PostSend(hca.SendWR{Op: hca.RDMAWrite, SGE: hca.SGE{Addr: r.Addr, Len: r.Len, LKey: mr.LKey},
		Remote: hca.RemoteAddr{Addr: hca.RangeOf(dst).Addr, RKey: mr.RKey}}); err != nil {
		return false, false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var wc [1]hca.WC
	for n := 0; n == 0; {
		if cq.Wait(ctx) != nil {
			return false, false, nil
		}
		if n, err = cq.Poll(wc[:]); err != nil {
			return false, false, err
		}
	}
	if wc[0].Status != hca.WCSuccess {
		return false, false, nil
	}
	clean := true
	for _, beside := range [][]byte{mem[2*page : 2*page+to], mem[3*page+to:]} {
		for _, c := range beside {
			clean = clean && c == 0
		}
	}
	return clean && string(src) == string(dst), true, nil
}
