package bpf

import (
	"github.com/cilium/ebpf/asm"

	"example.com/holdfast/hca"
)

// argAt is where struct pt_regs has the arguments of a system call: di, si,
// dx, r10, r8, r9.
var argAt = [6]int16{14 * 8, 13 * 8, 12 * 8, 7 * 8, 9 * 8, 8 * 8}

// narrow looks for calls that came by another door. Calls with the numbers and
// registers of 32 bits (int 0x80, which any program can use) are taken for
// calls that may do anything; nothing that is known to use them communicates.
// Those of x32 have the same numbers with one bit more.
func (b *builder) narrow() {
	const tsCompat = 2 // TS_COMPAT, asm/thread_info.h
	b.add(
		asm.LoadMem(asm.R1, asm.R7, b.off.status, asm.Word),
		asm.And.Imm(asm.R1, tsCompat), asm.JEq.Imm(asm.R1, 0, "wide"),
		asm.Mov.Imm(asm.R0, 0), asm.StoreMem(asm.RFP, onLo2, asm.R0, asm.DWord), asm.StoreMem(asm.RFP, onHi2, asm.R0, asm.DWord),
		asm.Mov.Imm(asm.R9, int32(hca.CauseOwner)),
		asm.Ja.Label("whole"),
	)
	b.mark("wide")
	b.add(asm.And.Imm(asm.R8, ^0x40000000)) // __X32_SYSCALL_BIT
}
