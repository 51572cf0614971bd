package bpf

import (
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
)

// argAt is where struct pt_regs has the arguments of a system call: di, si,
// dx, r10, r8, r9.
var argAt = [6]int16{14 * 8, 13 * 8, 12 * 8, 7 * 8, 9 * 8, 8 * 8}

// oldCalls are those that newer processors do not have.
func oldCalls() []call {
	return []call{
		{"open", unix.SYS_OPEN, lookOpen(1)},
		{"creat", unix.SYS_CREAT, lookFile},
	}
}

// numberField is where the kernel keeps the number of a task's system call.
const numberField = "pt_regs.orig_ax"

// narrow looks for calls that came by another door. Calls with the numbers and
// registers of 32 bits (int 0x80, which any program can use) are taken for
// calls that may do anything; nothing that is known to use them communicates.
func (b *builder) narrow() {
	b.compat("compat")
	b.add(asm.Ja.Label("wide"))
	b.mark("compat")
	b.oneRange()
	b.add(asm.Mov.Imm(asm.R9, int32(hca.CauseOwner)), asm.Ja.Label("whole"))
	b.mark("wide")
	b.plain()
}

// compat goes to yes if the task in R7 is inside of a call of 32 bits.
func (b *builder) compat(yes string) {
	const tsCompat = 2 // TS_COMPAT, asm/thread_info.h
	b.add(
		asm.LoadMem(asm.R1, asm.R7, b.off.status, asm.Word),
		asm.And.Imm(asm.R1, tsCompat), asm.JNE.Imm(asm.R1, 0, yes),
	)
}

// plain makes plain numbers of those of x32 in R8, which have one bit more.
func (b *builder) plain() {
	b.add(asm.And.Imm(asm.R8, ^0x40000000)) // __X32_SYSCALL_BIT
}
