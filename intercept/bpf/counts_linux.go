//go:build linux && (amd64 || arm64)

package bpf

import (
	"fmt"
	"io"
	"math"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// findCounts fills the rows: for each processor it finds out where the kernel
// counts who is in the middle of each of the programs, in the order of watched.
//
// The kernel keeps such a count for each processor at the same distance from that
// processor's base. The distance is a field of the program (bpf_prog.active), told
// by a program that walks all of them (a BPF iterator); the bases are found by bases.
// Whether this leads to the counts is tried.
func (k *kernel) findCounts(b *builder, watched []*ebpf.Program, walk, check *ebpf.Program) error {
	bases, err := k.bases(b)
	if err != nil {
		return err
	}
	var ids []uint64
	for i, at := range b.places() {
		p := check
		if i < len(watched) {
			p = watched[i]
		}
		info, err := p.Info()
		if err != nil {
			return err
		}
		id, ok := info.ID()
		if !ok {
			return fmt.Errorf("a program has no number: %w", ebpf.ErrNotSupported)
		}
		ids = append(ids, uint64(id)|isNumber)
		k.row(0, at).Store(ids[i])
	}
	if err := runWalk(walk); err != nil {
		return fmt.Errorf("walk the kernel's programs: %w", err)
	}
	for i, at := range b.places() {
		distance := k.row(0, at).Load()
		if distance == ids[i] {
			return fmt.Errorf("where the kernel counts who is in the middle of a program is not to be found: %w", ebpf.ErrNotSupported)
		}
		for cpu, base := range bases {
			k.row(cpu, at).Store(base + distance)
		}
	}
	l, err := link.AttachTracing(link.TracingOptions{Program: check})
	if err != nil {
		return fmt.Errorf("attach program %s: %w", nameCheck, err)
	}
	unix.Getppid()
	err = l.Close()
	if seen := k.word(atAnswer).Load(); seen != 1 {
		return fmt.Errorf("a program that is in the middle of itself found it counted as %d there: %w", int64(seen), ebpf.ErrNotSupported)
	}
	return err
}

// isNumber marks the number of a program, which no distance is taken for.
const isNumber = uint64(1) << 63

func (k *kernel) row(cpu int, at uintptr) *atomic.Uint64 {
	return k.word(uintptr(rowsAt(k.ring)+cpu*rowSize) + at)
}

// bases are those of the processors that there can be. A map with an element for
// each processor tells them: by where the elements are, and how the map itself
// keeps where that is.
func (k *kernel) bases(b *builder) ([]uint64, error) {
	each, err := ebpf.NewMap(&ebpf.MapSpec{Name: "holdfast_each", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return nil, fmt.Errorf("make map holdfast_each: %w", err)
	}
	defer each.Close()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "holdfast_base", Type: ebpf.RawTracepoint, Instructions: b.base(each.FD()), License: "GPL"})
	if err != nil {
		return nil, fmt.Errorf("load program holdfast_base: %w", err)
	}
	defer prog.Close()
	bases := make([]uint64, b.cpus)
	for cpu := range bases {
		k.word(atAsked).Store(uint64(cpu))
		if _, err := prog.Run(&ebpf.RunOptions{}); err != nil {
			return nil, fmt.Errorf("run program holdfast_base: %w", err)
		}
		there := k.word(atAnswer).Swap(0)
		if there == 0 {
			return nil, fmt.Errorf("the kernel keeps no variables for processor %d: %w", cpu, ebpf.ErrNotSupported)
		}
		bases[cpu] = there - k.word(atAsked).Load()
	}
	return bases, nil
}

// base answers with the address of the map's element of the processor that was
// asked for, and puts its distance from that processor's base in the place of the
// question.
func (b *builder) base(each int) asm.Instructions {
	b.ins = nil
	b.at(asm.R6, atAsked)
	b.add(
		asm.Mov.Imm(asm.R1, 0), asm.StoreMem(asm.RFP, onPos, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, each),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, onPos),
		asm.LoadMem(asm.R3, asm.R6, 0, asm.DWord),
		asm.FnMapLookupPercpuElem.Call(),
	)
	b.at(asm.R1, atAnswer)
	b.add(
		asm.StoreMem(asm.R1, 0, asm.R0, asm.DWord),
		asm.LoadMapPtr(asm.R1, each), asm.StoreMem(asm.R6, 0, asm.R1, asm.DWord), // the pointer as a number
		asm.LoadMem(asm.R3, asm.R6, 0, asm.DWord), asm.Add.Imm(asm.R3, int32(b.off.pptrs)),
		asm.Mov.Imm(asm.R2, 8),
	)
	b.read()
	b.add(
		asm.LoadMem(asm.R1, asm.RFP, onRead, asm.DWord), asm.StoreMem(asm.R6, 0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 0), asm.Return(),
	)
	return b.ins
}

// runWalk has all programs of the kernel walked.
func runWalk(walk *ebpf.Program) error {
	iter, err := link.AttachIter(link.IterOptions{Program: walk})
	if err != nil {
		return err
	}
	defer iter.Close()
	r, err := iter.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, r)
	return err
}

// walk is run for each program that there is. Where the first row has the number of
// one it puts the distance of that one's counts.
func (b *builder) walk() asm.Instructions {
	b.ins = nil
	b.at(asm.R3, uint32(rowsAt(b.slots)))
	b.add(
		asm.LoadMem(asm.R6, asm.R1, 8, asm.DWord), asm.JEq.Imm(asm.R6, 0, "out"), // struct bpf_prog *, at the end none
		asm.LoadMem(asm.R2, asm.R6, b.off.aux, asm.DWord),
		asm.LoadMem(asm.R2, asm.R2, b.off.id, asm.Word),
		asm.LoadImm(asm.R4, math.MinInt64, asm.DWord), asm.Or.Reg(asm.R2, asm.R4), // isNumber
		asm.LoadMem(asm.R4, asm.R6, b.off.inside, asm.DWord),
	)
	for _, at := range b.places() {
		next := b.fresh("next")
		b.add(
			asm.LoadMem(asm.R1, asm.R3, int16(at), asm.DWord), asm.JNE.Reg(asm.R1, asm.R2, next),
			asm.StoreMem(asm.R3, int16(at), asm.R4, asm.DWord),
		)
		b.mark(next)
		b.add(asm.Mov.Imm(asm.R0, 0))
	}
	b.out()
	return b.ins
}

// check answers with what its own count is, in the middle of it: 1.
func (b *builder) check() asm.Instructions {
	b.ins = nil
	b.row("row")
	b.add(asm.Ja.Label("out"))
	b.mark("row")
	b.add(asm.LoadMem(asm.R3, asm.R9, rowOwn, asm.DWord), asm.Mov.Imm(asm.R2, 4))
	b.read()
	b.add(
		asm.JNE.Imm(asm.R0, 0, "answer"), // the error
		asm.LoadMem(asm.R0, asm.RFP, onRead, asm.Word),
	)
	b.mark("answer")
	b.at(asm.R1, atAnswer)
	b.add(asm.StoreMem(asm.R1, 0, asm.R0, asm.DWord))
	b.out()
	return b.ins
}
