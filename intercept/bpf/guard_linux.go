//go:build linux && (amd64 || arm64)

package bpf

import (
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
)

// The kernel does not run a program on a processor on which it is running
// already: for each program and processor it counts who is inside, and passes by
// whoever is not the first, silently (__bpf_trace_run in kernel/trace/bpf_trace.c).
// Up to Linux 6.x preemption is off at a tracepoint, so nobody else can come. From
// Linux 7.0 on only migration is off there: a task can lose the processor in the
// middle of a program, and until it has it back the program is passed by for
// everybody else on that processor.
//
// The guard makes that harmless. It is a program that runs at every switch from
// one task to another, with interrupts off and the run queue locked: nobody is
// ever preempted in the middle of it, so it is never passed by itself. It reads
// the kernel's own counts (bpf_prog.active), whose addresses were asked for at the
// start (counts_linux.go).
//
// Call it a *stint* from when a task gets a processor until it gives it up. Only
// the task that runs enters or leaves a program on its processor. So what others
// are in the middle of there stays the same for a whole stint, and when a stint of
// one of our tasks begins the guard can tell which of our programs will be passed by
// in it. (A program that the task itself was preempted in counts too: more than
// needed, never less.)
//
//   - The entry of system calls will be passed by: the counter is unsettled before
//     the task runs, and settled when the stint ends. Nothing is hit and nothing is
//     published anywhere as long as the task can make calls that nobody announces.
//     When the stint ends the task is looked at where it stands. If it is inside of
//     a call that takes memory away, it is entered into the table of operations, as
//     one on everything, and the exit of the call takes it out. If it is, or the exit
//     saw that one ended in this stint, or the exit was passed by as well, an event
//     says that anything may have changed (hca.CauseLost). Else it made no such call,
//     and the counter is what it was.
//   - The exit will be passed by: a slot may be left in the table. That is safe, and
//     the next call of the task frees it, at its entry or its exit; if the task
//     stands outside of such a call when the stint ends, it is freed then.
//
// So a call whose entry is passed by is covered: by the unsettled counter from
// before it begins until the stint ends; then by the event, before the counter
// is settled; and if it goes on, by the table until its exit. An entry is passed
// by or not within one stint: a task that is preempted in the middle of the
// program is in it, and has not acted.
//
// A slot that was made here for a task that had passed the exit already, and was on
// its way out of the kernel, stays until the next system call of that task. Till
// then nothing new is kept: wrong in the safe direction.
//
// A request to io_uring that is missed is carried out later by somebody else, and
// nothing tells of it. So that program is loaded several times (submits), one after
// the other at the same tracepoint, and the guard counts how many of them will be
// passed by in a stint. If it is more than missable, nothing is kept any more. If it is
// fewer, others of them run, unless the task is preempted in the middle of handing
// requests in and others are passed by when it is back: so the slot of a task that
// stands inside of io_uring_enter collects which were, and if they are more than missable
// nothing is kept any more either. The slot and the last stint together are fewer than
// submits. A thread of the kernel that polls for requests makes no calls, so for that
// one is too many.

// submits is how often the program that takes requests to io_uring is loaded where
// programs are passed by, and missable how many of them may be.
const submits, missable = 5, 2

// A row for each processor: of the stint of a task of ours that runs there, which
// programs are passed by in it, 0: none; whether a call that takes memory away
// ended in it; and where the kernel counts who is in the middle of a program.
const (
	rowSize  = 128
	rowStint = 0
	rowEnded = 8
	rowCount = 16                       // one each for enter, leave, and submits
	rowOwn   = rowCount + 8*(2+submits) // at the start: one for the program that checks the others

	stintEnter  = 1 << 0
	stintLeave  = 1 << 1
	stintSubmit = 1 << 8  // and the bits above it: which of them
	stintCount  = 1 << 16 // times how many of them
)

// rowsAt is where the rows are, behind the ring.
func rowsAt(slots int) int { return (atRing + slots*slot + rowSize - 1) &^ (rowSize - 1) }

// guard is the program at the switch from one task to another.
func (b *builder) guard() asm.Instructions {
	b.ins = nil
	b.add(asm.Mov.Reg(asm.R6, asm.R1)) // preempted, from, to
	b.row("row")
	b.count(atBroken, 1) // a processor that was not possible
	b.add(asm.Ja.Label("out"))
	b.mark("row")
	b.add(asm.LoadMem(asm.R8, asm.R9, rowStint, asm.DWord), asm.JEq.Imm(asm.R8, 0, "begins"))
	b.ends()
	b.mark("begins")
	b.add(
		asm.LoadMem(asm.R7, asm.R6, 16, asm.DWord),
		asm.LoadMem(asm.R1, asm.R7, b.off.mm, asm.DWord),
		asm.LoadImm(asm.R2, int64(b.self), asm.DWord),
		asm.JNE.Reg(asm.R1, asm.R2, "out"),
		asm.Mov.Imm(asm.R8, 0),
	)
	for i, bit := range b.watched() {
		busy, next := b.fresh("busy"), b.fresh("next")
		b.add(
			asm.LoadMem(asm.R3, asm.R9, rowCount+8*int16(i), asm.DWord),
			asm.Mov.Imm(asm.R2, 4),
		)
		b.read()
		b.add(
			asm.JNE.Imm(asm.R0, 0, busy), // cannot be read: at worst
			asm.LoadMem(asm.R1, asm.RFP, onRead, asm.Word), asm.JEq.Imm(asm.R1, 0, next),
		)
		b.mark(busy)
		b.add(asm.Add.Imm(asm.R8, bit))
		b.mark(next)
	}
	b.add(
		asm.JEq.Imm(asm.R8, 0, "out"), // almost always
		asm.LoadMem(asm.R1, asm.R7, b.off.flags2, asm.Word), asm.Mov.Reg(asm.R2, asm.R1),
		asm.And.Imm(asm.R2, userWorker), asm.JEq.Imm(asm.R2, 0, "calls"),
		asm.And.Imm(asm.R1, ioWorker), asm.JNE.Imm(asm.R1, 0, "out"), // it carries requests out
		asm.JGE.Imm(asm.R8, stintSubmit, "takes_requests"),
		asm.Ja.Label("out"),
	)
	b.mark("calls")
	b.add(
		asm.StoreMem(asm.R9, rowStint, asm.R8, asm.DWord),
		asm.Mov.Imm(asm.R1, 0), asm.StoreMem(asm.R9, rowEnded, asm.R1, asm.DWord),
		asm.Mov.Reg(asm.R1, asm.R8), asm.And.Imm(asm.R1, stintEnter), asm.JEq.Imm(asm.R1, 0, "announced"),
	)
	b.count(atBlind, 1)
	b.count(atCounter, 1)
	b.mark("announced")
	b.add(asm.JLT.Imm(asm.R8, (missable+1)*stintCount, "out"))
	b.mark("takes_requests")
	b.add(asm.Mov.Imm(asm.R0, 0))
	if b.off.ring {
		b.add(asm.LoadMem(asm.R1, asm.R7, b.off.uring, asm.DWord), asm.JEq.Imm(asm.R1, 0, "out"))
		b.count(atBroken, 1)
	}
	b.out()
	return b.ins
}

// Threads of the kernel that run in a process's address space, and of these
// io_uring's workers: PF_USER_WORKER and PF_IO_WORKER, linux/sched.h. They make no
// system calls.
const userWorker, ioWorker = 0x4000, 0x10

// watched are the programs whose counts the guard reads, in the order of a row, by
// what each adds to rowStint.
func (b *builder) watched() []int32 {
	bits := []int32{stintEnter, stintLeave}
	if b.off.ring {
		for i := range submits {
			bits = append(bits, stintSubmit<<i+stintCount)
		}
	}
	return bits
}

// places are where a row has the counts of those, and last of the one that checks.
func (b *builder) places() (places []uintptr) {
	for i := range b.watched() {
		places = append(places, rowCount+8*uintptr(i))
	}
	return append(places, rowOwn)
}

// row points R9 at the row of this processor and goes on at yes; it falls through
// if there is none.
func (b *builder) row(yes string) {
	b.add(asm.FnGetSmpProcessorId.Call())
	b.at(asm.R9, uint32(rowsAt(b.slots)))
	b.add(
		asm.Mov.Reg(asm.R1, asm.R0), asm.Mul.Imm(asm.R1, rowSize), asm.Add.Reg(asm.R9, asm.R1),
		asm.JLT.Imm(asm.R0, int32(b.cpus), yes),
	)
}

// ends is for the task of ours that gives up the processor whose row is R9, and
// for which programs were passed by: R8 says which.
func (b *builder) ends() {
	b.add(
		asm.Mov.Imm(asm.R1, 0), asm.StoreMem(asm.R9, rowStint, asm.R1, asm.DWord), asm.StoreMem(asm.RFP, onUring, asm.R1, asm.DWord),
		asm.StoreMem(asm.RFP, onRow, asm.R9, asm.DWord),
		asm.StoreMem(asm.RFP, onStint, asm.R8, asm.DWord),
		asm.LoadMem(asm.R7, asm.R6, 8, asm.DWord),
		asm.LoadMem(asm.R1, asm.R7, b.off.pid, asm.Word), asm.StoreMem(asm.RFP, onTid, asm.R1, asm.DWord),
		asm.Mov.Reg(asm.R1, asm.R7), asm.FnTaskPtRegs.Call(),
		asm.LoadMem(asm.R8, asm.R0, b.off.number, asm.Word),
	)
	b.takes("inside")
	if b.off.ring {
		b.add(
			asm.JNE.Imm(asm.R8, unix.SYS_IO_URING_ENTER, "outside"),
			asm.LoadMem(asm.R1, asm.RFP, onStint, asm.DWord), asm.RSh.Imm(asm.R1, 8), asm.And.Imm(asm.R1, 1<<submits-1), asm.JEq.Imm(asm.R1, 0, "outside"),
			asm.StoreMem(asm.RFP, onUring, asm.R1, asm.DWord),
			asm.Ja.Label("occupies"),
		)
		b.mark("outside")
	}
	b.release("went")
	b.mark("inside")
	b.add(asm.LoadMem(asm.R1, asm.RFP, onStint, asm.DWord), asm.And.Imm(asm.R1, stintEnter), asm.JEq.Imm(asm.R1, 0, "begins"))
	b.add(asm.Mov.Imm(asm.R1, 1), asm.StoreMem(asm.R9, rowEnded, asm.R1, asm.DWord)) // or will
	b.mark("occupies")
	b.oneRange()
	b.add(asm.Mov.Imm(asm.R7, 0), asm.Mov.Imm(asm.R8, -1))
	b.take(true)
	b.add(asm.LoadMem(asm.R1, asm.RFP, onUring, asm.DWord), asm.Mov.Imm(asm.R2, 0))
	for range submits {
		b.add(asm.Mov.Reg(asm.R3, asm.R1), asm.And.Imm(asm.R3, 1), asm.Add.Reg(asm.R2, asm.R3), asm.RSh.Imm(asm.R1, 1))
	}
	b.add(asm.JLE.Imm(asm.R2, missable, "went"))
	b.count(atBroken, 1)

	b.mark("went")
	b.add(
		asm.LoadMem(asm.R1, asm.RFP, onStint, asm.DWord),
		asm.Mov.Reg(asm.R2, asm.R1), asm.And.Imm(asm.R2, stintEnter), asm.JEq.Imm(asm.R2, 0, "begins"),
		asm.And.Imm(asm.R1, stintLeave), asm.JNE.Imm(asm.R1, 0, "lost"),
		asm.LoadMem(asm.R1, asm.R9, rowEnded, asm.DWord), asm.JNE.Imm(asm.R1, 0, "lost"),
	)
	b.count(atCounter, -1)
	b.add(asm.Ja.Label("ended"))
	b.mark("lost")
	b.at(asm.R1, atCounter)
	b.add(asm.LoadMem(asm.R2, asm.R1, 0, asm.DWord))
	b.stamp()
	b.add(asm.Mov.Imm(asm.R7, 0), asm.Mov.Imm(asm.R8, -1), asm.Mov.Imm(asm.R9, int32(hca.CauseLost)))
	b.event("rung")
	b.count(atCounter, int32(hca.CounterStep)-1)
	b.ring("rung")
	b.mark("rung")
	b.add(asm.LoadMem(asm.R9, asm.RFP, onRow, asm.DWord))
	b.mark("ended")
	b.add(asm.Mov.Imm(asm.R0, 0))
}

// takes goes to yes if the system call with the registers in R0 and the number in
// R8, of the task in R7, is one that may take memory away. It changes R1 and R2, and
// makes the number plain.
func (b *builder) takes(yes string) {
	b.compat(yes)
	b.plain()
	for _, c := range calls() {
		if c.number != unix.SYS_IOCTL {
			b.add(asm.JEq.Imm(asm.R8, c.number, yes))
			continue
		}
		other := b.fresh("no_ioctl")
		b.add(asm.JNE.Imm(asm.R8, c.number, other), asm.LoadMem(asm.R1, asm.R0, argAt[1], asm.DWord))
		b.ifMove(yes)
		b.ifCut(yes)
		b.mark(other)
	}
}

// noteExit is for the exit of a system call of ours: in a stint in which entries
// are passed by it notes that one that takes memory away has ended. The task is in
// R0, the tracepoint's arguments are in R6. It changes all but these.
func (b *builder) noteExit() {
	b.add(asm.Mov.Reg(asm.R7, asm.R0))
	b.row("row")
	b.add(asm.Ja.Label("noted"))
	b.mark("row")
	b.add(
		asm.LoadMem(asm.R1, asm.R9, rowStint, asm.DWord), asm.And.Imm(asm.R1, stintEnter), asm.JEq.Imm(asm.R1, 0, "noted"), // almost always
		asm.LoadMem(asm.R0, asm.R6, 0, asm.DWord),
		asm.LoadMem(asm.R8, asm.R0, b.off.number, asm.Word),
	)
	b.takes("took")
	b.add(asm.Ja.Label("noted"))
	b.mark("took")
	b.add(asm.Mov.Imm(asm.R1, 1), asm.StoreMem(asm.R9, rowEnded, asm.R1, asm.DWord))
	b.mark("noted")
	b.add(asm.Mov.Imm(asm.R1, 0))
}
