//go:build linux && (amd64 || arm64)

package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
)

// The kernel does not run a program on a processor on which it is running
// already: for each program and processor it counts who is inside, and passes by
// whoever is not the first (__bpf_trace_run in kernel/trace/bpf_trace.c). Up to
// Linux 6.x preemption is off at a tracepoint, so nobody else can come. From
// Linux 7.0 on only migration is off there: a task can lose the processor in the
// middle of a program, and until it has it back the program is passed by for
// everybody else on that processor, silently.
//
// So there every program is loaded several times (copies), one after the other
// at the same tracepoint. A waiting task is in the middle of one of them at most;
// the others run. So while a task has the processor, a call of it can go
// unannounced only if as many tasks wait there as there are copies: then the
// processor is *blind*. Or if it is preempted between two copies, having been
// passed by at one, and is passed by at the other when it is back.
//
// The program here makes that harmless. It runs at every switch from one task
// to another, with interrupts off and the run queue locked: nobody is ever
// preempted in the middle of it, so it is never passed by. The kernel counts who
// is inside with migration disabled, so
//
//	a task that can make others be passed by was preempted with migration
//	disabled, and gets the same processor again.
//
// What the kernel does to run this program itself may disable migration as well:
// calibrate finds out by how much.
//
// Those tasks are kept in a row for each processor. Who enters a row on a
// processor leaves it there, so the row needs no lock.
//
//   - When a task of ours gets a blind processor, the counter is unsettled
//     before the task runs. Nothing is hit and nothing is published anywhere as
//     long as that task can make calls that nobody announces.
//   - When it gives the processor up, or a task of ours is preempted inside of the
//     kernel while anybody waits, it is looked at where it stands. If it is inside
//     of a call that takes memory away it is entered into the table of
//     operations, as one on everything, and the exit of the call takes it out;
//     else a slot that it has is freed, because it may have left the call
//     unseen. Then an event says that anything may have changed (hca.CauseLost),
//     and the counter is settled.
//
// So a call that is announced by none of the copies is covered. Either it was
// passed by at all of them while the task had the processor once: then by the
// unsettled counter while it can be under way, by the event when it is over, and
// by the table if it goes on elsewhere. Or the task was preempted between two
// copies, while somebody waited: then by the event and the table from that moment
// on, which is before it acts. The same at the exit: a slot whose end is not seen
// is one that was made here, or is freed here.
//
// Tasks that wait but were in the middle of something else count too: more than
// needed, never less.
//
// A slot that was made here for a thread that had passed the exit already, and
// was on its way out of the kernel, stays until the next system call of that
// thread. Till then nothing new is kept: wrong in the safe direction.
//
// A request to io_uring that is missed is carried out later by somebody else, and
// nothing tells of it. So that program has more copies. Half of them can be
// passed by while a task has the processor, and half in a call in which it was
// preempted: if more could have been, nothing is kept any more.

// copies is how often each program is loaded where programs are preempted: each
// costs every system call of every process a few nanoseconds. submits is the same
// for the one that takes requests to io_uring.
const copies, submits = 2, 6

// A row: how many tasks wait, whether a task of ours is running meanwhile, and
// their numbers, plus one so that none is 0.
const (
	rowSize  = 256
	rowOurs  = 8
	rowTasks = 16
	waiting  = (rowSize - rowTasks) / 8 // that a row has room for
)

// calibrate lets the program that is attached see this thread go to sleep, with
// nothing disabled. It must be the thread that ran whoami.
func (k *kernel) calibrate() error {
	for range 100 {
		nap := unix.NsecToTimespec(1e6)
		if err := unix.Nanosleep(&nap, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("nanosleep: %w", err)
		}
		if k.word(atLevel).Load() != 0 {
			k.word(atTid).Store(0)
			return nil
		}
	}
	return fmt.Errorf("the program at sched_switch does not run: %w", ebpf.ErrNotSupported)
}

// blind is the program at the switch from one task to another.
func (b *builder) blind() asm.Instructions {
	b.ins = nil
	b.add(
		asm.Mov.Reg(asm.R6, asm.R1), // preempted, from, to
		asm.LoadMem(asm.R7, asm.R6, 8, asm.DWord),
	)
	b.level()
	b.add(
		asm.FnGetSmpProcessorId.Call(),
		asm.JLT.Imm(asm.R0, int32(b.cpus), "row"),
	)
	b.count(atBroken, 1) // a processor that was not possible
	b.add(asm.Ja.Label("out"))
	b.mark("row")
	b.at(asm.R9, b.atRows())
	b.add(
		asm.Mul.Imm(asm.R0, rowSize), asm.Add.Reg(asm.R9, asm.R0),
		asm.LoadMem(asm.R1, asm.R9, rowOurs, asm.DWord), asm.JNE.Imm(asm.R1, 0, "departs"),
		asm.LoadMem(asm.R2, asm.R9, 0, asm.DWord), asm.JEq.Imm(asm.R2, 0, "gone"), // almost always
		asm.LoadMem(asm.R1, asm.R7, b.off.mm, asm.DWord),
		asm.LoadImm(asm.R2, int64(b.self), asm.DWord),
		asm.JNE.Reg(asm.R1, asm.R2, "gone"),
		asm.LoadMem(asm.R1, asm.R6, 0, asm.DWord), asm.And.Imm(asm.R1, 1), asm.JNE.Imm(asm.R1, 0, "between"),
	)
	// It may sleep in somebody else's program between two of ours.
	b.unlessPinned("gone")
	b.mark("between")
	b.add(asm.Mov.Imm(asm.R0, 0))
	b.count(atCounter, 1)
	b.mark("departs")
	b.departs()

	// Who gives the processor up may be in the middle of a program.
	b.mark("gone")
	b.add(
		asm.LoadMem(asm.R1, asm.R6, 0, asm.DWord), asm.And.Imm(asm.R1, 1), asm.JEq.Imm(asm.R1, 0, "entered"),
	)
	b.unlessPinned("entered")
	b.add(
		asm.LoadMem(asm.R1, asm.R9, 0, asm.DWord), asm.Add.Imm(asm.R1, 1), asm.StoreMem(asm.R9, 0, asm.R1, asm.DWord),
		asm.LoadMem(asm.R2, asm.R7, b.off.pid, asm.Word), asm.Add.Imm(asm.R2, 1),
	)
	for i := range int16(waiting) {
		next := b.fresh("occupied")
		b.add(
			asm.LoadMem(asm.R1, asm.R9, rowTasks+8*i, asm.DWord), asm.JNE.Imm(asm.R1, 0, next),
			asm.StoreMem(asm.R9, rowTasks+8*i, asm.R2, asm.DWord),
			asm.Ja.Label("entered"),
		)
		b.mark(next)
	}
	b.count(atBroken, 1) // no room: this processor would stay blind

	b.mark("entered")
	b.add(
		asm.LoadMem(asm.R1, asm.R9, 0, asm.DWord), asm.JEq.Imm(asm.R1, 0, "out"),
		asm.LoadMem(asm.R8, asm.R6, 16, asm.DWord),
		asm.LoadMem(asm.R2, asm.R8, b.off.pid, asm.Word), asm.Add.Imm(asm.R2, 1),
	)
	for i := range int16(waiting) {
		next := b.fresh("other")
		b.add(
			asm.LoadMem(asm.R1, asm.R9, rowTasks+8*i, asm.DWord), asm.JNE.Reg(asm.R1, asm.R2, next),
			asm.Mov.Imm(asm.R1, 0), asm.StoreMem(asm.R9, rowTasks+8*i, asm.R1, asm.DWord),
			asm.LoadMem(asm.R1, asm.R9, 0, asm.DWord), asm.Add.Imm(asm.R1, -1), asm.StoreMem(asm.R9, 0, asm.R1, asm.DWord),
			asm.Ja.Label("left"),
		)
		b.mark(next)
	}
	b.add(asm.Ja.Label("left")) // was not preempted here
	b.mark("left")
	b.add(
		asm.LoadMem(asm.R1, asm.R9, 0, asm.DWord), asm.JLT.Imm(asm.R1, int32(b.copies), "out"),
		asm.LoadMem(asm.R1, asm.R8, b.off.mm, asm.DWord),
		asm.LoadImm(asm.R2, int64(b.self), asm.DWord),
		asm.JNE.Reg(asm.R1, asm.R2, "out"),
		asm.Mov.Imm(asm.R1, 1), asm.StoreMem(asm.R9, rowOurs, asm.R1, asm.DWord),
	)
	b.count(atBlind, 1)
	b.count(atCounter, 1)
	b.out()
	return b.ins
}

// level does nothing once atTid is 0. Before, it notes what migration_disabled
// is of that thread whenever it goes to sleep, and leaves it at that.
func (b *builder) level() {
	b.at(asm.R1, atTid)
	b.add(
		asm.LoadMem(asm.R1, asm.R1, 0, asm.DWord), asm.JEq.Imm(asm.R1, 0, "started"),
		asm.LoadMem(asm.R2, asm.R7, b.off.pid, asm.Word), asm.JNE.Reg(asm.R1, asm.R2, "out"),
		asm.LoadMem(asm.R1, asm.R6, 0, asm.DWord), asm.And.Imm(asm.R1, 1), asm.JNE.Imm(asm.R1, 0, "out"),
		asm.LoadMem(asm.R2, asm.R7, b.off.pinned, asm.Half), asm.Add.Imm(asm.R2, 1),
	)
	b.at(asm.R1, atLevel)
	b.add(asm.StoreMem(asm.R1, 0, asm.R2, asm.DWord), asm.Ja.Label("out"))
	b.mark("started")
}

// unlessPinned goes to no if the task in R7 has migration enabled. It changes R1
// and R3.
func (b *builder) unlessPinned(no string) {
	b.add(asm.LoadMem(asm.R3, asm.R7, b.off.pinned, asm.Half), asm.Add.Imm(asm.R3, 1))
	b.at(asm.R1, atLevel)
	b.add(asm.LoadMem(asm.R1, asm.R1, 0, asm.DWord), asm.JLE.Reg(asm.R3, asm.R1, no))
}

// departs is for the task in R7, ours, that gives up the processor whose row is
// R9 and may have been passed by. The counter is unsettled for it. It leaves both
// registers as they were.
func (b *builder) departs() {
	b.add(
		asm.StoreMem(asm.RFP, onRow, asm.R9, asm.DWord),
		asm.Mov.Imm(asm.R1, 0), asm.StoreMem(asm.R9, rowOurs, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.R7, b.off.pid, asm.Word), asm.StoreMem(asm.RFP, onTid, asm.R1, asm.DWord),
	)
	b.add(
		asm.LoadMem(asm.R1, asm.R9, 0, asm.DWord), asm.StoreMem(asm.RFP, onTotal, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R1, 0), asm.StoreMem(asm.RFP, onUring, asm.R1, asm.DWord),
	)
	half := int32(max(1, b.submits/2))
	if b.off.ring {
		const userWorker = 0x4000 // PF_USER_WORKER: a thread that polls for requests makes no calls
		b.add(
			asm.LoadMem(asm.R1, asm.R7, b.off.uring, asm.DWord), asm.JEq.Imm(asm.R1, 0, "no_uring"),
			asm.LoadMem(asm.R1, asm.RFP, onTotal, asm.DWord), asm.JGE.Imm(asm.R1, half, "many"),
			asm.LoadMem(asm.R1, asm.R7, b.off.flags2, asm.Word), asm.And.Imm(asm.R1, userWorker),
			asm.StoreMem(asm.RFP, onUring, asm.R1, asm.DWord),
			asm.JNE.Imm(asm.R1, 0, "inside"),
			asm.Ja.Label("no_uring"),
		)
		b.mark("many")
		b.add(asm.Mov.Imm(asm.R0, 0))
		b.count(atBroken, 1)
		b.mark("no_uring")
	}
	b.compat("inside")
	b.add(
		asm.Mov.Reg(asm.R1, asm.R7), asm.FnTaskPtRegs.Call(),
		asm.LoadMem(asm.R8, asm.R0, b.off.number, asm.Word),
	)
	b.plain()
	for _, c := range calls() {
		if c.number == unix.SYS_IOCTL {
			b.add(asm.JNE.Imm(asm.R8, c.number, "no_ioctl"))
			b.add(asm.LoadMem(asm.R1, asm.R0, argAt[1], asm.DWord))
			b.ifMove("inside")
			b.add(asm.Ja.Label("outside"))
			b.mark("no_ioctl")
			continue
		}
		b.add(asm.JEq.Imm(asm.R8, c.number, "inside"))
	}
	b.add(
		asm.JNE.Imm(asm.R8, unix.SYS_IO_URING_ENTER, "outside"),
		asm.StoreMem(asm.RFP, onUring, asm.R8, asm.DWord),
		asm.Ja.Label("inside"),
	)
	b.mark("outside")
	b.release("told")
	b.mark("inside")
	b.oneRange()
	b.add(asm.Mov.Imm(asm.R7, 0), asm.Mov.Imm(asm.R8, -1))
	b.take(true)
	b.add(
		asm.LoadMem(asm.R1, asm.RFP, onUring, asm.DWord), asm.JEq.Imm(asm.R1, 0, "told"),
		asm.LoadMem(asm.R1, asm.RFP, onTotal, asm.DWord), asm.JLT.Imm(asm.R1, half, "told"),
	)
	b.count(atBroken, 1)
	b.mark("told")
	b.at(asm.R1, atCounter)
	b.add(asm.LoadMem(asm.R2, asm.R1, 0, asm.DWord))
	b.stamp()
	b.add(asm.Mov.Imm(asm.R7, 0), asm.Mov.Imm(asm.R8, -1), asm.Mov.Imm(asm.R9, int32(hca.CauseLost)))
	b.event("rung")
	b.count(atCounter, int32(hca.CounterStep)-1)
	b.ring("rung")
	b.mark("rung")
	b.add(asm.LoadMem(asm.R9, asm.RFP, onRow, asm.DWord), asm.LoadMem(asm.R7, asm.R6, 8, asm.DWord))
}
