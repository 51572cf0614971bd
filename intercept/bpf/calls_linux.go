//go:build linux && (amd64 || arm64)

package bpf

import (
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
)

// call is a system call that may take memory away.
type call struct {
	name   string
	number int32
	// look decides: it jumps to "out" if the call takes nothing away, to
	// "whole" with the cause in R9, or to "announce" with the range in R7 and
	// R8 too. R7 is the task before, R9 the registers of the caller.
	look func(b *builder)
}

// Two that are no hca.Cause. What they stand for is found out when the slot is
// taken: how far the heap goes, and whether memory of files is watched.
const (
	causeBrk  = 64
	causeFile = 65
)

const (
	shmRemap    = 0x4000     // SHM_REMAP, sys/shm.h
	uffdMove    = 0xc028aa05 // UFFDIO_MOVE, linux/userfaultfd.h
	fsUnresv    = 0x40305829 // FS_IOC_UNRESVSP, linux/falloc.h
	fsUnresv64  = 0x4030582b // FS_IOC_UNRESVSP64
	fsZeroRange = 0x40305839 // FS_IOC_ZERO_RANGE
	protGrows   = unix.PROT_GROWSDOWN | unix.PROT_GROWSUP
)

func calls() []call {
	return append([]call{
		{"munmap", unix.SYS_MUNMAP, func(b *builder) {
			b.args(asm.R7, 0, asm.R1, 1)
			b.cause(hca.CauseUnmap)
			b.span(asm.R7, asm.R8, false)
			b.add(asm.Ja.Label("announce"))
		}},
		{"mmap", unix.SYS_MMAP, func(b *builder) {
			b.args(asm.R7, 0, asm.R1, 1, asm.R3, 3)
			b.add(
				asm.Mov.Reg(asm.R2, asm.R3), asm.And.Imm(asm.R2, unix.MAP_FIXED), asm.JEq.Imm(asm.R2, 0, "out"),
				asm.And.Imm(asm.R3, mapFixedNoreplaceOnly), asm.JNE.Imm(asm.R3, 0, "out"),
			)
			b.cause(hca.CauseUnmap)
			b.span(asm.R7, asm.R8, true)
			b.add(asm.Ja.Label("announce"))
		}},
		{"mremap", unix.SYS_MREMAP, lookMremap},
		{"madvise", unix.SYS_MADVISE, func(b *builder) {
			b.args(asm.R7, 0, asm.R1, 1, asm.R2, 2)
			b.cause(hca.CauseDiscard)
			// Through this mapping the file behind it loses pages: other
			// mappings of it lose them too.
			b.add(asm.JEq.Imm(asm.R2, unix.MADV_REMOVE, "whole"))
			for _, advice := range discards {
				b.add(asm.JEq.Imm(asm.R2, advice, "madvise_range"))
			}
			b.add(asm.Ja.Label("out"))
			b.mark("madvise_range")
			b.add(asm.Mov.Imm(asm.R0, 0))
			b.span(asm.R7, asm.R8, false)
			b.add(asm.Ja.Label("announce"))
		}},
		{"process_madvise", unix.SYS_PROCESS_MADVISE, func(b *builder) {
			// Its ranges lie in memory that another thread can change after we
			// have read it. Only on oneself does the kernel discard anything.
			b.args(asm.R2, 3)
			b.cause(hca.CauseDiscard)
			b.add(asm.JEq.Imm(asm.R2, unix.MADV_REMOVE, "whole"))
			for _, advice := range discards {
				b.add(asm.JEq.Imm(asm.R2, advice, "whole"))
			}
			b.add(asm.Ja.Label("out"))
		}},
		{"brk", unix.SYS_BRK, func(b *builder) {
			b.add(asm.StoreMem(asm.RFP, onTask, asm.R7, asm.DWord))
			b.args(asm.R7, 0)
			b.add(
				asm.JEq.Imm(asm.R7, 0, "out"), // the usual way to ask where it is
				asm.Mov.Imm(asm.R9, causeBrk),
				asm.LoadImm(asm.R8, int64(top), asm.DWord),
				asm.JGE.Reg(asm.R7, asm.R8, "out"), // the kernel refuses it
				asm.Ja.Label("announce"),
			)
		}},
		{"shmdt", unix.SYS_SHMDT, func(b *builder) {
			// The kernel finds out how long the segment is, and skips what
			// else is mapped in between.
			b.args(asm.R7, 0)
			b.cause(hca.CauseUnmap)
			b.add(asm.LoadImm(asm.R1, int64(top), asm.DWord))
			b.span(asm.R7, asm.R8, false)
			b.add(asm.Ja.Label("announce"))
		}},
		{"shmat", unix.SYS_SHMAT, func(b *builder) {
			b.args(asm.R2, 2)
			b.cause(hca.CauseUnmap)
			b.add(asm.And.Imm(asm.R2, shmRemap), asm.JEq.Imm(asm.R2, 0, "out"), asm.Ja.Label("whole"))
		}},
		{"mprotect", unix.SYS_MPROTECT, lookMprotect},
		{"pkey_mprotect", unix.SYS_PKEY_MPROTECT, lookMprotect},
		{"remap_file_pages", unix.SYS_REMAP_FILE_PAGES, func(b *builder) {
			b.args(asm.R7, 0, asm.R1, 1)
			b.cause(hca.CauseUnmap)
			b.span(asm.R7, asm.R8, true)
			b.add(asm.Ja.Label("announce"))
		}},
		{"truncate", unix.SYS_TRUNCATE, lookFile},
		{"ftruncate", unix.SYS_FTRUNCATE, lookFile},
		{"fallocate", unix.SYS_FALLOCATE, func(b *builder) {
			b.args(asm.R2, 1)
			b.add(
				asm.And.Imm(asm.R2, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_COLLAPSE_RANGE|unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_INSERT_RANGE),
				asm.JEq.Imm(asm.R2, 0, "out"),
			)
			lookFile(b)
		}},
		{"openat", unix.SYS_OPENAT, lookOpen(2)},
		{"openat2", unix.SYS_OPENAT2, lookFile}, // its flags lie in memory that can change
		{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, lookOpen(2)},
		{"ioctl", unix.SYS_IOCTL, func(b *builder) {
			b.args(asm.R1, 1)
			b.cause(hca.CauseRemap)
			b.ifMove("whole")
			b.ifCut("ioctl_file")
			b.add(asm.Ja.Label("out"))
			b.mark("ioctl_file")
			b.add(asm.Mov.Imm(asm.R0, 0))
			lookFile(b)
		}},
	}, oldCalls()...)
}

// ifMove goes to yes if the request in R1 is userfaultfd's UFFDIO_MOVE.
func (b *builder) ifMove(yes string) {
	b.add(
		asm.LSh.Imm(asm.R1, 32), asm.RSh.Imm(asm.R1, 32), // the kernel takes 32 bits
		asm.LoadImm(asm.R2, uffdMove, asm.DWord),
		asm.JEq.Reg(asm.R1, asm.R2, yes),
	)
}

// ifCut goes to yes if the request in R1, of which ifMove has left 32 bits, is one of
// the oldest ways to punch holes into files.
func (b *builder) ifCut(yes string) {
	for _, request := range []int64{fsUnresv, fsUnresv64, fsZeroRange} {
		b.add(asm.LoadImm(asm.R2, request, asm.DWord), asm.JEq.Reg(asm.R1, asm.R2, yes))
	}
}

// discards are the advices that throw pages away, all but MADV_REMOVE.
var discards = [...]int32{
	unix.MADV_DONTNEED, unix.MADV_DONTNEED_LOCKED, unix.MADV_FREE, unix.MADV_GUARD_INSTALL,
	unix.MADV_HWPOISON, madvSoftOffline,
}

const (
	madvSoftOffline       = 101
	mapFixedNoreplaceOnly = unix.MAP_FIXED_NOREPLACE &^ unix.MAP_FIXED
)

// lookMprotect: what leaves a mapping readable and writable takes nothing
// away.
func lookMprotect(b *builder) {
	b.args(asm.R7, 0, asm.R1, 1, asm.R2, 2)
	b.cause(hca.CauseOwner)
	b.add(
		asm.Mov.Reg(asm.R3, asm.R2),
		asm.And.Imm(asm.R3, unix.PROT_READ|unix.PROT_WRITE), asm.JEq.Imm(asm.R3, unix.PROT_READ|unix.PROT_WRITE, "out"),
		asm.And.Imm(asm.R2, protGrows), asm.JNE.Imm(asm.R2, 0, "whole"),
	)
	b.span(asm.R7, asm.R8, false)
	b.add(asm.Ja.Label("announce"))
}

// lookMremap: what shrinks loses its tail; what grows and may not move loses
// nothing; all else may leave its place. With MREMAP_FIXED what lies at the
// destination goes as well.
func lookMremap(b *builder) {
	const gone = unix.MREMAP_FIXED | unix.MREMAP_DONTUNMAP
	b.args(asm.R7, 0, asm.R1, 1, asm.R4, 2, asm.R3, 3, asm.R0, 4)
	b.add(
		asm.StoreMem(asm.RFP, onPos, asm.R0, asm.DWord),
		asm.Mov.Reg(asm.R5, asm.R3), asm.And.Imm(asm.R5, gone), asm.JNE.Imm(asm.R5, 0, "mremap_moves"),
		asm.JEq.Reg(asm.R4, asm.R1, "out"),
		asm.JLT.Reg(asm.R4, asm.R1, "mremap_shrinks"),
		asm.And.Imm(asm.R3, unix.MREMAP_MAYMOVE), asm.JEq.Imm(asm.R3, 0, "out"),
		asm.Mov.Imm(asm.R3, 0), // no destination of its own
		asm.Ja.Label("mremap_moves"),
	)
	b.mark("mremap_shrinks")
	b.add(asm.Add.Reg(asm.R7, asm.R4), asm.Sub.Reg(asm.R1, asm.R4))
	b.cause(hca.CauseUnmap)
	b.span(asm.R7, asm.R8, true)
	b.add(asm.Ja.Label("announce"))

	b.mark("mremap_moves")
	b.cause(hca.CauseRemap)
	b.add(asm.Mov.Imm(asm.R8, 0), asm.JEq.Imm(asm.R1, 0, "mremap_to")) // length 0: a second mapping, the first stays
	b.span(asm.R7, asm.R8, true)
	b.mark("mremap_to")
	b.add(
		asm.And.Imm(asm.R3, unix.MREMAP_FIXED), asm.JEq.Imm(asm.R3, 0, "announce"),
		asm.LoadMem(asm.R3, asm.RFP, onPos, asm.DWord), asm.Mov.Reg(asm.R1, asm.R4),
	)
	b.span(asm.R3, asm.R4, true)
	b.add(
		asm.StoreMem(asm.RFP, onLo2, asm.R3, asm.DWord), asm.StoreMem(asm.RFP, onHi2, asm.R4, asm.DWord),
		asm.Ja.Label("announce"),
	)
}

// args loads arguments of the system call: register, index, register, index.
func (b *builder) args(what ...any) {
	for i := 0; i < len(what); i += 2 {
		b.add(asm.LoadMem(what[i].(asm.Register), asm.R9, argAt[what[i+1].(int)], asm.DWord))
	}
}

func (b *builder) cause(c hca.Cause) { b.add(asm.Mov.Imm(asm.R9, int32(c))) }

// span makes whole pages of the bytes at lo, R1 of them, as the kernel does:
// [lo,hi), no further than top. It goes out where there are none. It changes
// R0, R1 and R2.
//
// Where the memory may be of huge pages, whose size the kernel rounds the
// length up to and we do not know, hi is rounded as far as the address allows:
// it has to be a multiple of that size.
func (b *builder) span(lo, hi asm.Register, huge bool) {
	clip, round := b.fresh("clip"), b.fresh("round")
	b.add(
		asm.JEq.Imm(asm.R1, 0, "out"),
		asm.LoadImm(asm.R2, int64(top-1), asm.DWord), asm.And.Reg(lo, asm.R2),
		asm.Add.Imm(asm.R2, 1),
		asm.Mov.Reg(hi, asm.R2), asm.JGE.Reg(asm.R1, asm.R2, clip),
		asm.Mov.Reg(hi, lo), asm.Add.Reg(hi, asm.R1), asm.Add.Imm(hi, int32(b.pageSize-1)),
	)
	b.mark(clip)
	b.add(asm.And.Imm(lo, int32(-b.pageSize)), asm.And.Imm(hi, int32(-b.pageSize)))
	if !huge {
		return
	}
	most := int64(1) << 30
	if b.pageSize > 4096 {
		most = 16 << 30 // arm64 with pages of 64 KiB
	}
	b.add(
		asm.Mov.Reg(asm.R0, lo), asm.Neg.Imm(asm.R0, 0), asm.And.Reg(asm.R0, lo), // the alignment of lo
		asm.LoadImm(asm.R2, most, asm.DWord),
		asm.JEq.Imm(asm.R0, 0, round), asm.JGT.Reg(asm.R0, asm.R2, round),
		asm.Mov.Reg(asm.R2, asm.R0),
	)
	b.mark(round)
	b.add(
		asm.Add.Reg(hi, asm.R2), asm.Add.Imm(hi, -1),
		asm.Neg.Imm(asm.R2, 0), asm.And.Reg(hi, asm.R2),
	)
}

// heapEnd is for brk, once the counter is unsettled and the slot, open to the
// top, stands in the table: the event goes up to where the heap ends now.
// Another thread may let it grow before this call acts; but then what is
// registered there finds the slot.
func (b *builder) heapEnd() {
	b.add(
		asm.LoadMem(asm.R1, asm.RFP, onTask, asm.DWord),
		asm.LoadMem(asm.R1, asm.R1, b.off.mm, asm.DWord),
		asm.LoadMem(asm.R8, asm.R1, b.off.brk, asm.DWord),
		asm.Add.Imm(asm.R7, int32(b.pageSize-1)), asm.And.Imm(asm.R7, int32(-b.pageSize)),
		asm.Add.Imm(asm.R8, int32(b.pageSize-1)), asm.And.Imm(asm.R8, int32(-b.pageSize)),
		asm.JGE.Reg(asm.R7, asm.R8, "settle"), // grows
		asm.Mov.Imm(asm.R9, int32(hca.CauseUnmap)),
	)
}

// filesWatched is for what changes a file, whichever it is: once the counter is
// unsettled and the slot, on everything, stands in the table, there is no event if
// no memory of any file has ever been watched. Who watches some later says so before
// he looks for slots, and finds this one: see kernel.Watch.
//
// To look at the file itself would be in vain. The descriptor, the path or the
// flags in memory name one file here and another when the call comes to use them,
// if a second thread sees to that.
func (b *builder) filesWatched() {
	b.at(asm.R1, atFiles)
	b.add(
		asm.LoadMem(asm.R1, asm.R1, 0, asm.DWord), asm.JEq.Imm(asm.R1, 0, "settle"),
		asm.Mov.Imm(asm.R9, int32(hca.CauseDiscard)),
	)
}

// lookOpen is for a call that opens a file with the flags in this argument.
func lookOpen(flags int) func(b *builder) {
	return func(b *builder) {
		b.args(asm.R1, flags)
		b.add(asm.And.Imm(asm.R1, unix.O_TRUNC), asm.JEq.Imm(asm.R1, 0, "out"))
		lookFile(b)
	}
}

// lookFile is for a call that may take pages out of a file.
func lookFile(b *builder) {
	b.add(asm.Mov.Imm(asm.R9, causeFile), asm.Ja.Label("whole"))
}

// read reads R2 bytes at the kernel's address R3; what cannot be read is 0.
func (b *builder) read() {
	b.add(asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, onRead), asm.FnProbeReadKernel.Call())
}
