//go:build linux && (amd64 || arm64)

package bpf

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept/internal/source"
	"example.com/holdfast/intercept/internal/uffd"
)

// kernel is the source. What it holds is set before the monitor is made and
// not changed until Stop.
type kernel struct {
	shared
	events events

	block, spills, bell *ebpf.Map
	programs            []*ebpf.Program
	links               []link.Link
	reader              *ringbuf.Reader
	workers             sync.WaitGroup
	ringSeen            bool                   // io_uring's requests are seen
	deaf                atomic.Pointer[string] // why the bell is not heard any more

	// files guards maps, which Stop closes.
	files sync.RWMutex
	maps  int // /proc/self/maps, -1: closed
}

var _ source.Source = (*kernel)(nil)

func (k *kernel) Events() source.Events { return &k.events }
func (k *kernel) Exact() bool           { return true }
func (k *kernel) UnderWay(uint32) bool  { return true } // no memory has a domain here
func (k *kernel) CatchUp()              {}

// Watch finds nothing to do but to look: what ends memory is announced before
// it does, whatever the memory, so a hit needs the counter only and the memory
// is of kind hca.MemOwned.
//
// Why this is enough is the argument at intercept.Monitor.Begin, with the
// programs in the place of the caller and the table of operations in the place
// of the ledger: see shared.busy.
func (k *kernel) Watch(lo, hi uint64) hca.Watch {
	files := k.word(atFiles).Load() != 0
	if k.busy(lo, hi) {
		return hca.Watch{Why: hca.UnkeptUnsettled}
	}
	why, file := k.mapped(lo, hi)
	if why != hca.KeptAllRight {
		return hca.Watch{Why: why}
	}
	if file && !files {
		// From here on whatever changes a file is an event: what began before
		// stands in the table, and what was over by now is over.
		k.word(atFiles).Store(1)
		if k.busy(lo, hi) {
			return hca.Watch{Why: hca.UnkeptUnsettled}
		}
	}
	return hca.Watch{Kind: hca.MemOwned}
}

func (k *kernel) Kind(lo, hi uint64) hca.MemKind { return k.Watch(lo, hi).Kind }

// maxMappings is how many mappings a range may consist of: each costs a system
// call of 0.3 us.
const maxMappings = 1024

// mapped looks whether all of [lo,hi) is, and whether any of it is of a file.
func (k *kernel) mapped(lo, hi uint64) (why hca.Unkept, file bool) {
	k.files.RLock()
	defer k.files.RUnlock()
	if k.maps < 0 {
		return hca.UnkeptNoSource, false
	}
	for range maxMappings {
		end, of, err := mapping(k.maps, lo)
		file = file || of
		switch {
		case errors.Is(err, syscall.ENOENT):
			return hca.UnkeptNotMapped, false
		case err != nil:
			return hca.UnkeptRefused, false
		case end >= hi:
			return hca.KeptAllRight, file
		}
		lo = end
	}
	return hca.UnkeptRefused, false
}

// mapping finds the end of the mapping that holds addr, and whether it is of a file;
// ENOENT if there is none.
func mapping(maps int, addr uint64) (end uint64, file bool, err error) {
	m, err := uffd.Query(maps, addr)
	if !errors.Is(err, syscall.ENOTTY) {
		return m.End, m.Kind.Inode != 0, err
	}
	// Before Linux 6.11: read the whole list.
	self, err := procfs.Self()
	if err != nil {
		return 0, false, err
	}
	all, err := self.ProcMaps()
	if err != nil {
		return 0, false, err
	}
	for _, p := range all {
		if uint64(p.StartAddr) <= addr && addr < uint64(p.EndAddr) {
			return uint64(p.EndAddr), p.Inode != 0, nil
		}
	}
	return 0, false, syscall.ENOENT
}

// rest is how long events may be visible before subscribers are woken once
// more. It delays when memory that nobody asks for is unpinned, and nothing
// else: every Get reads the counter.
const rest = 500 * time.Microsecond

// start has the bell heard.
func (k *kernel) start(bell func()) {
	k.workers.Add(1)
	go func() {
		defer k.workers.Done()
		var rec ringbuf.Record
		for {
			if err := k.reader.ReadInto(&rec); err != nil {
				if !errors.Is(err, ringbuf.ErrClosed) {
					why := err.Error()
					k.deaf.Store(&why)
				}
				return
			}
			// The bell is not answered at once: whoever unmaps in a loop would
			// pay for waking us each time, as much as for the call itself.
			for again := true; again; {
				seen := k.events.Done()
				bell()
				time.Sleep(rest)
				k.word(atBell).Store(0) // what comes from here on rings
				again = k.events.Done() != seen
			}
		}
	}()
}

// Stop detaches the programs and closes everything but the shared block.
func (k *kernel) Stop() {
	k.files.Lock()
	if k.maps >= 0 {
		unix.Close(k.maps)
		k.maps = -1
	}
	k.files.Unlock()
	for i := len(k.links) - 1; i >= 0; i-- { // the entry before the exit
		k.links[i].Close()
	}
	for _, p := range k.programs {
		p.Close()
	}
	if k.reader != nil {
		k.reader.Close()
	}
	k.workers.Wait()
	for _, m := range []*ebpf.Map{k.bell, k.spills, k.block} {
		if m != nil {
			m.Close()
		}
	}
}

func (k *kernel) Counts() source.Counts {
	n := func(c hca.Cause) uint64 { return k.word(atCounts + 8*uintptr(c)).Load() }
	return source.Counts{
		Unmaps: n(hca.CauseUnmap), Remaps: n(hca.CauseRemap), Discards: n(hca.CauseDiscard),
		Others: n(hca.CauseOwner) + n(hca.CauseLost),
	}
}

func (k *kernel) String() string {
	s := "programs in the kernel (bpf) and explicit calls: announces every munmap, mremap, mmap over memory, brk, madvise, shmdt, mprotect and truncation by a system call of this process, before it acts"
	s += "; not what others do to a shared file"
	if !k.ringSeen {
		s += ", nor madvise and truncation by io_uring, which this kernel does not let be traced"
	}
	if k.word(atBroken).Load() != 0 {
		s += fmt.Sprintf("; BROKEN, nothing is kept any more: more than %d operations were under way at once, io_uring was told to discard and not to say when it is done, or the programs on io_uring may have been passed by", spilled)
	}
	if why := k.deaf.Load(); why != nil {
		s += "; DEGRADED, memory that went is found out at the next Get only: " + *why
	}
	return s
}

// try sees whether each kind of call arrives, with memory of our own.
func (k *kernel) try(expect source.Expect) error {
	page := uintptr(os.Getpagesize())
	var at [2]unsafe.Pointer
	for i := range at {
		p, err := unix.MmapPtr(-1, 0, nil, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
		if err != nil {
			return refused(fmt.Errorf("self-test: mmap: %w", err))
		}
		at[i] = p
	}
	ours := at[:]
	defer func() {
		for _, p := range ours {
			_ = unix.MunmapPtr(p, page) // of a page that is mapped: cannot fail
		}
	}()
	where := func(i int) func() hca.Range {
		return func() hca.Range { return hca.Range{Addr: uint64(uintptr(at[i])), Len: uint64(page)} }
	}
	for _, step := range []struct {
		what  string
		cause hca.Cause
		where int
		do    func() error
	}{
		{"madvise", hca.CauseDiscard, 0, func() error {
			return unix.Madvise(unsafe.Slice((*byte)(at[0]), page), unix.MADV_DONTNEED)
		}},
		{"mprotect", hca.CauseOwner, 0, func() error {
			return unix.Mprotect(unsafe.Slice((*byte)(at[0]), page), unix.PROT_READ)
		}},
		{"mmap over a page", hca.CauseUnmap, 0, func() error {
			_, err := unix.MmapPtr(-1, 0, at[0], page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS|unix.MAP_FIXED)
			return err
		}},
		{"mremap", hca.CauseRemap, 0, func() error {
			_, err := unix.MremapPtr(at[0], page, at[1], page, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED)
			if err == nil {
				ours = at[1:]
			}
			return err
		}},
		{"munmap", hca.CauseUnmap, 1, func() error {
			ours = nil
			return unix.MunmapPtr(at[1], page)
		}},
	} {
		if err := expect(step.do, where(step.where), step.cause); err != nil {
			return refused(fmt.Errorf("self-test: %s: %w", step.what, err))
		}
	}
	return nil
}
