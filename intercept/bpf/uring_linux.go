//go:build linux && (amd64 || arm64)

package bpf

import (
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
)

// io_uring makes some of these calls itself, on a worker of its own and not
// through the entry of system calls. The programs here stand where a request
// is handed in and where it is completed; in between it owns a slot as a
// thread does. Addresses of requests are never the number of a thread.
//
// Either program may be loaded several times, see guard_linux.go. The copies
// run one after the other, and each that is not passed by announces: a request
// may have several events, which is as good as one.

// Operations of io_uring that take memory away, linux/io_uring.h.
const (
	opFallocate = 17
	opOpenat    = 18
	opMadvise   = 25
	opOpenat2   = 28
	opFtruncate = 55

	cqeSkip = 1 << 6 // IOSQE_CQE_SKIP_SUCCESS: no completion if it works
)

// submit is the program at the point where io_uring takes a request.
func (b *builder) submit() asm.Instructions {
	b.ins = nil
	b.add(asm.Mov.Reg(asm.R6, asm.R1))
	b.mine()
	b.add(
		asm.LoadMem(asm.R6, asm.R6, 0, asm.DWord), // struct io_kiocb *
		asm.LoadMem(asm.R8, asm.R6, b.off.opcode, asm.Byte),
		asm.Mov.Imm(asm.R9, int32(hca.CauseDiscard)),
		asm.JEq.Imm(asm.R8, opMadvise, "advice"),
		asm.Mov.Imm(asm.R9, causeFile),
		asm.JEq.Imm(asm.R8, opFallocate, "all"),
		asm.JEq.Imm(asm.R8, opFtruncate, "all"),
		asm.JEq.Imm(asm.R8, opOpenat, "open"), asm.JEq.Imm(asm.R8, opOpenat2, "open"),
		asm.Ja.Label("out"),
	)
	b.mark("open") // the kernel has its own copy of the flags
	b.request()
	b.add(
		asm.LoadMem(asm.R1, asm.RFP, onReq+b.off.how, asm.DWord),
		asm.And.Imm(asm.R1, unix.O_TRUNC), asm.JEq.Imm(asm.R1, 0, "out"), asm.Ja.Label("all"),
	)
	b.mark("advice")
	b.request()
	b.add(
		asm.LoadMem(asm.R7, asm.RFP, onReq+b.off.addr, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, onReq+b.off.length, asm.DWord),
		asm.LoadMem(asm.R2, asm.RFP, onReq+b.off.advice, asm.Word),
		asm.JEq.Imm(asm.R2, unix.MADV_REMOVE, "all"),
	)
	for _, advice := range discards {
		b.add(asm.JEq.Imm(asm.R2, advice, "discard"))
	}
	b.add(asm.Ja.Label("out"))
	b.mark("discard")
	b.span(asm.R7, asm.R8, false)
	b.add(asm.Ja.Label("known"))
	b.mark("all")
	b.add(asm.Mov.Imm(asm.R7, 0), asm.Mov.Imm(asm.R8, -1))
	b.mark("known")
	b.oneRange()
	b.add(
		// Who owns the slot is the address as a number; to the verifier it is a
		// pointer until it has been copied as bytes.
		asm.StoreMem(asm.RFP, onPos, asm.R6, asm.DWord),
		asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, onTid), asm.Mov.Imm(asm.R2, 8),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, onPos), asm.FnProbeReadKernel.Call(),
		asm.LoadMem(asm.R1, asm.R6, b.off.flags, asm.DWord),
		asm.And.Imm(asm.R1, cqeSkip), asm.JEq.Imm(asm.R1, 0, "announce"),
	)
	b.count(atBroken, 1) // nobody will tell when it is done
	b.add(asm.Ja.Label("announce"))
	b.mark("announce")
	return b.announce()
}

// request reads what the request in R6 is about.
func (b *builder) request() {
	b.add(
		asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, onReq), asm.Mov.Imm(asm.R2, -onReq+onRead),
		asm.Mov.Reg(asm.R3, asm.R6), asm.FnProbeReadKernel.Call(),
	)
}

// complete is the program where io_uring completes a request, in whatever
// context it does so.
func (b *builder) complete() asm.Instructions {
	b.ins = nil
	b.add(asm.LoadMem(asm.R6, asm.R1, 8, asm.DWord)) // void *req
	b.anyActive()
	b.add(
		asm.JEq.Imm(asm.R6, 0, "out"),
		asm.StoreMem(asm.RFP, onTid, asm.R6, asm.DWord),
	)
	return b.settle()
}
