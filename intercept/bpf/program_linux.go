//go:build linux && (amd64 || arm64)

package bpf

import (
	"fmt"

	"github.com/cilium/ebpf/asm"

	"example.com/holdfast/hca"
)

// offsets are the places of the kernel's fields, from its own type information.
type offsets struct {
	mm     int16 // task_struct.mm
	brk    int16 // mm_struct.brk
	status int16 // task_struct.thread_info.status, on amd64

	pid    int16 // task_struct.pid
	number int16 // of the system call, in pt_regs
	uring  int16 // task_struct.io_uring
	flags2 int16 // task_struct.flags
	aux    int16 // bpf_prog.aux
	id     int16 // bpf_prog_aux.id
	inside int16 // bpf_prog.active
	pptrs  int16 // bpf_array.pptrs

	ring                 bool  // io_uring's are there
	opcode, flags        int16 // io_kiocb
	addr, length, advice int16 // io_madvise, which lies at the start of it
	how                  int16 // io_open.how.flags, the same
}

// builder writes a program, one instruction after the other.
type builder struct {
	ins    asm.Instructions
	label  string // of the next instruction
	labels int

	mapFD, spillFD, bellFD int
	off                    offsets
	self                   uint64 // mm_struct of this process
	slots                  int    // of the ring
	cpus                   int    // that can be
	guarded                bool   // programs may be passed by: see guard_linux.go
	pageSize               int64
}

func (b *builder) add(ins ...asm.Instruction) {
	for _, in := range ins {
		if b.label != "" {
			in = in.WithSymbol(b.label)
			b.label = ""
		}
		b.ins = append(b.ins, in)
	}
}

// mark names the next instruction.
func (b *builder) mark(label string) {
	if b.label != "" {
		panic("bpf: two labels at one place: " + b.label + ", " + label)
	}
	b.label = label
}

// fresh gives a label that nobody else has.
func (b *builder) fresh(what string) string {
	b.labels++
	return fmt.Sprintf("%s_%d", what, b.labels)
}

// at points dst at a place in the shared block.
func (b *builder) at(dst asm.Register, place uint32) { b.add(asm.LoadMapValue(dst, b.mapFD, place)) }

// count adds n to a shared word; it uses R1 and R2, and leaves the old value
// in R2.
func (b *builder) count(place uint32, n int32) {
	b.at(asm.R1, place)
	b.add(asm.Mov.Imm(asm.R2, n), atomically(asm.FetchAdd, asm.R1, asm.R2, 0))
}

// The stack of all programs, below the frame pointer.
const (
	onLo2   = -8
	onHi2   = -16
	onTid   = -24
	onStamp = -32
	onTask  = -40
	onPos   = -48
	onRead  = -56
	onReq   = -96 // 40 bytes
	onRow   = -104
	onUring = -112
	onStint = -120
)

// top is the end of the addresses that a user can have. Higher bits hold a tag
// where the processor ignores one, and the kernel does too.
const top = uint64(1) << 56

// mine goes to "out" unless the thread runs in our address space; it leaves
// the task in R0. By address space and not by process: a child that shares it
// (vfork) takes our memory away as well.
func (b *builder) mine() {
	b.add(
		asm.FnGetCurrentTaskBtf.Call(),
		asm.LoadMem(asm.R1, asm.R0, b.off.mm, asm.DWord),
		asm.LoadImm(asm.R2, int64(b.self), asm.DWord),
		asm.JNE.Reg(asm.R1, asm.R2, "out"),
	)
}

func (b *builder) out() {
	b.mark("out")
	b.add(asm.Mov.Imm(asm.R0, 0), asm.Return())
}

// tid stores how the kernel numbers the thread.
func (b *builder) tid() {
	b.add(
		asm.FnGetCurrentPidTgid.Call(),
		asm.LSh.Imm(asm.R0, 32), asm.RSh.Imm(asm.R0, 32),
		asm.StoreMem(asm.RFP, onTid, asm.R0, asm.DWord),
	)
}

// opAt points R2 at slot i of those that the owner in R3 may have.
func (b *builder) opAt(i int32) {
	b.add(
		asm.Mov.Reg(asm.R1, asm.R3), asm.RSh.Imm(asm.R1, 8), asm.Xor.Reg(asm.R1, asm.R3), asm.Add.Imm(asm.R1, i),
		asm.And.Imm(asm.R1, maxOps-1), asm.Mul.Imm(asm.R1, opSize),
	)
	b.at(asm.R2, atOps)
	b.add(asm.Add.Reg(asm.R2, asm.R1))
}

// enter is the program at the entry of every system call. It finds those that
// take memory away and announces them: event, slot, counter, in this order
// with the counter unsettled around it all.
func (b *builder) enter() asm.Instructions {
	b.ins = nil
	b.add(asm.Mov.Reg(asm.R6, asm.R1))
	b.mine()
	b.add(
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.LoadMem(asm.R9, asm.R6, 0, asm.DWord), // struct pt_regs *
		asm.LoadMem(asm.R8, asm.R6, 8, asm.DWord), // number
	)
	b.narrow()
	calls := calls()
	for _, c := range calls {
		b.add(asm.JEq.Imm(asm.R8, c.number, c.name))
	}
	if b.guarded {
		// If the exit of its last call was missed it may have a slot still, and
		// this one may take for ever.
		b.anyActive()
		b.tid()
		b.release("out")
	} else {
		b.add(asm.Ja.Label("out"))
	}
	for _, c := range calls {
		b.mark(c.name)
		b.oneRange()
		c.look(b)
	}
	b.whole()
	b.mark("announce")
	b.tid()
	return b.announce()
}

// oneRange says that there is no second.
func (b *builder) oneRange() {
	b.add(asm.Mov.Imm(asm.R0, 0), asm.StoreMem(asm.RFP, onLo2, asm.R0, asm.DWord), asm.StoreMem(asm.RFP, onHi2, asm.R0, asm.DWord))
}

// whole is where those come that may change anything.
func (b *builder) whole() {
	b.mark("whole")
	b.add(asm.Mov.Imm(asm.R7, 0), asm.Mov.Imm(asm.R8, -1), asm.Ja.Label("announce"))
}

// announce is the rest of a program that has found an operation: R7 and R8
// are the range, R9 the cause, and who does it is on the stack.
func (b *builder) announce() asm.Instructions {
	b.count(atCounter, 1)
	b.stamp()
	b.take(false)
	b.add(asm.JEq.Imm(asm.R9, causeFile, "by_file"), asm.JNE.Imm(asm.R9, causeBrk, "ranges"))
	b.heapEnd()
	b.add(asm.Ja.Label("ranges"))
	b.mark("by_file")
	b.filesWatched()
	b.mark("ranges")
	b.add(asm.JEq.Imm(asm.R8, 0, "second"))
	b.event("out")
	b.mark("second")
	b.add(
		asm.LoadMem(asm.R7, asm.RFP, onLo2, asm.DWord), asm.LoadMem(asm.R8, asm.RFP, onHi2, asm.DWord),
		asm.JEq.Imm(asm.R8, 0, "settle"),
		asm.Mov.Imm(asm.R9, int32(hca.CauseUnmap)),
	)
	b.event("out")
	b.mark("settle")
	b.count(atCounter, int32(hca.CounterStep)-1)
	b.ring("out")
	b.out()
	return b.ins
}

// stamp keeps the count of the counter, whose old value is in R2.
func (b *builder) stamp() {
	b.add(asm.RSh.Imm(asm.R2, 16), asm.StoreMem(asm.RFP, onStamp, asm.R2, asm.DWord))
}

// take enters the operation on [R7,R8), and the second range on the stack,
// into the table for the owner on the stack. An owner has one slot: if it has
// one already, because the end of an older operation was missed, that one is
// used. It changes R0 to R5.
//
// general says that the slot is of a call that may not have been announced
// itself; see guard_linux.go for what it collects.
func (b *builder) take(general bool) {
	anew, again, taken, noted := b.fresh("anew"), b.fresh("again"), b.fresh("taken"), b.fresh("noted")
	b.count(atActive, 1)
	b.add(
		asm.LoadMem(asm.R3, asm.RFP, onTid, asm.DWord),
		asm.JEq.Imm(asm.R2, 0, anew), // nobody has a slot
	)
	for i := range int32(probes) {
		b.opAt(i)
		b.add(asm.LoadMem(asm.R1, asm.R2, 0, asm.DWord), asm.JEq.Reg(asm.R1, asm.R3, again))
	}
	b.mark(anew)
	for i := range int32(probes) {
		b.opAt(i)
		b.add(
			asm.Mov.Imm(asm.R0, 0),
			atomically(asm.CmpXchg, asm.R2, asm.R3, 0),
			asm.JEq.Imm(asm.R0, 0, taken),
		)
	}
	const noExist, exists = 1, -17 // BPF_NOEXIST, -EEXIST
	broken := b.fresh("broken")
	b.count(atSpill, 1)
	b.add(
		asm.LoadMapPtr(asm.R1, b.spillFD),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, onTid),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, onTid),
		asm.Mov.Imm(asm.R4, noExist),
		asm.FnMapUpdateElem.Call(),
		asm.JEq.Imm(asm.R0, 0, noted),
		asm.JNE.Imm(asm.R0, exists, broken),
	)
	b.count(atSpill, -1)
	b.count(atActive, -1)
	b.add(asm.Ja.Label(noted))
	b.mark(broken)
	b.count(atBroken, 1)
	b.add(asm.Ja.Label(noted))
	b.mark(again)
	b.add(asm.Mov.Reg(asm.R5, asm.R2))
	b.count(atActive, -1)
	b.add(asm.Mov.Reg(asm.R2, asm.R5))
	if general {
		b.add(
			asm.LoadMem(asm.R3, asm.RFP, onUring, asm.DWord), asm.LoadMem(asm.R1, asm.R2, 40, asm.DWord),
			asm.Or.Reg(asm.R3, asm.R1), asm.StoreMem(asm.RFP, onUring, asm.R3, asm.DWord),
		)
	}
	b.mark(taken)
	b.add(
		asm.StoreMem(asm.R2, 8, asm.R7, asm.DWord), asm.StoreMem(asm.R2, 16, asm.R8, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, onLo2, asm.DWord), asm.StoreMem(asm.R2, 24, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, onHi2, asm.DWord), asm.StoreMem(asm.R2, 32, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R1, 0),
	)
	if general {
		b.add(asm.LoadMem(asm.R1, asm.RFP, onUring, asm.DWord))
	}
	b.add(asm.StoreMem(asm.R2, 40, asm.R1, asm.DWord))
	b.mark(noted)
	b.add(asm.Mov.Imm(asm.R0, 0))
}

// ring rings the bell and goes on at done. One ring stands for all until it is
// answered.
func (b *builder) ring(done string) {
	b.at(asm.R1, atBell)
	b.add(
		asm.Mov.Imm(asm.R2, 1), atomically(asm.Xchg, asm.R1, asm.R2, 0),
		asm.JNE.Imm(asm.R2, 0, done),
		asm.LoadMapPtr(asm.R1, b.bellFD),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, onTid),
		asm.Mov.Imm(asm.R3, 8),
		asm.Mov.Imm(asm.R4, 2), // BPF_RB_FORCE_WAKEUP
		asm.FnRingbufOutput.Call(),
		asm.JEq.Imm(asm.R0, 0, done),
	)
	// It could not be rung: the next event tries again.
	b.at(asm.R1, atBell)
	b.add(asm.Mov.Imm(asm.R2, 0), atomically(asm.Xchg, asm.R1, asm.R2, 0), asm.Ja.Label(done))
}

// event puts [R7,R8) of cause R9 into the ring; it changes R0 to R5, and R7
// to R9 if the writer was overtaken. If it was twice the counter has to stay
// unsettled for ever: it goes on at lost.
func (b *builder) event(lost string) {
	done := b.fresh("written")
	for lap := range 2 {
		b.count(atClaim, 1)
		b.add(
			asm.StoreMem(asm.RFP, onPos, asm.R2, asm.DWord),
			asm.Mov.Reg(asm.R4, asm.R2), asm.Add.Imm(asm.R4, 1), asm.LSh.Imm(asm.R4, 8), asm.Or.Reg(asm.R4, asm.R9),
			asm.And.Imm(asm.R2, int32(b.slots-1)), asm.Mul.Imm(asm.R2, slot),
		)
		b.at(asm.R3, atRing)
		b.add(
			asm.Add.Reg(asm.R3, asm.R2),
			asm.Mov.Imm(asm.R5, 0), atomically(asm.Xchg, asm.R3, asm.R5, 16),
			asm.StoreMem(asm.R3, 0, asm.R7, asm.DWord),
			asm.Mov.Reg(asm.R5, asm.R8), asm.Sub.Reg(asm.R5, asm.R7),
			asm.StoreMem(asm.R3, 8, asm.R5, asm.DWord),
			asm.LoadMem(asm.R5, asm.RFP, onStamp, asm.DWord), asm.StoreMem(asm.R3, 24, asm.R5, asm.DWord),
			atomically(asm.Xchg, asm.R3, asm.R4, 16),
		)
		b.add(asm.Mov.Reg(asm.R2, asm.R9), asm.And.Imm(asm.R2, 7), asm.LSh.Imm(asm.R2, 3))
		b.at(asm.R1, atCounts)
		b.add(asm.Add.Reg(asm.R1, asm.R2), asm.Mov.Imm(asm.R2, 1), atomically(asm.AddAtomic, asm.R1, asm.R2, 0))
		// Overtaken?
		b.at(asm.R1, atClaim)
		b.add(
			asm.LoadMem(asm.R2, asm.R1, 0, asm.DWord),
			asm.LoadMem(asm.R1, asm.RFP, onPos, asm.DWord), asm.Sub.Reg(asm.R2, asm.R1),
			asm.JLE.Imm(asm.R2, int32(b.slots), done),
		)
		if lap == 0 {
			b.add(asm.Mov.Imm(asm.R7, 0), asm.Mov.Imm(asm.R8, -1), asm.Mov.Imm(asm.R9, int32(hca.CauseLost)))
			continue
		}
		b.add(asm.Ja.Label(lost))
	}
	b.mark(done)
	b.add(asm.Mov.Imm(asm.R0, 0))
}

// leave is the program at the exit of every system call: the thread's slot, if
// it has one, is free again.
func (b *builder) leave() asm.Instructions {
	b.ins = nil
	b.add(asm.Mov.Reg(asm.R6, asm.R1))
	b.mine()
	if b.guarded {
		b.noteExit()
	}
	b.anyActive()
	b.tid()
	return b.settle()
}

// anyActive goes out if nothing is under way.
func (b *builder) anyActive() {
	b.at(asm.R1, atActive)
	b.add(asm.LoadMem(asm.R1, asm.R1, 0, asm.DWord), asm.JEq.Imm(asm.R1, 0, "out"))
}

// settle is the rest of a program at the end of what may have been an
// operation: who did it is on the stack.
func (b *builder) settle() asm.Instructions {
	b.release("out")
	b.out()
	return b.ins
}

// release frees the slot of the owner on the stack, if it has one, and goes on
// at done. It changes R0 to R5.
func (b *builder) release(done string) {
	found, over := b.fresh("found"), b.fresh("over")
	b.add(asm.LoadMem(asm.R3, asm.RFP, onTid, asm.DWord))
	for i := range int32(probes) {
		b.opAt(i)
		b.add(asm.LoadMem(asm.R1, asm.R2, 0, asm.DWord), asm.JEq.Reg(asm.R1, asm.R3, found))
	}
	b.at(asm.R1, atSpill)
	b.add(
		asm.LoadMem(asm.R1, asm.R1, 0, asm.DWord), asm.JEq.Imm(asm.R1, 0, done),
		asm.LoadMapPtr(asm.R1, b.spillFD),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, onTid),
		asm.FnMapDeleteElem.Call(),
		asm.JNE.Imm(asm.R0, 0, done),
	)
	b.count(atSpill, -1)
	b.add(asm.Ja.Label(over))
	b.mark(found)
	b.add(asm.Mov.Imm(asm.R1, 0), atomically(asm.Xchg, asm.R2, asm.R1, 0))
	b.mark(over)
	b.count(atActive, -1)
	b.add(asm.Ja.Label(done))
}

// whoami stores how the kernel names our address space.
func (b *builder) whoami() asm.Instructions {
	b.ins = nil
	b.add(
		asm.FnGetCurrentTaskBtf.Call(),
		asm.LoadMem(asm.R6, asm.R0, b.off.mm, asm.DWord),
	)
	b.at(asm.R1, atAnswer)
	b.add(asm.StoreMem(asm.R1, 0, asm.R6, asm.DWord), asm.Mov.Imm(asm.R0, 0), asm.Return())
	return b.ins
}

// atomically is op.Mem for words of 64 bits. The operation is written into the
// constant as well, because version 0.22 of the library loses it when it
// encodes the instruction, and all become a plain addition.
func atomically(op asm.AtomicOp, dst, src asm.Register, offset int16) asm.Instruction {
	in := op.Mem(dst, src, asm.DWord, offset)
	in.Constant = int64(op >> 8)
	return in
}
