//go:build linux && (amd64 || arm64)

package bpf

import (
	"errors"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
	"example.com/holdfast/internal/childtest"
	"example.com/holdfast/internal/leaktest"
)

const rw = unix.PROT_READ | unix.PROT_WRITE

var pageSize = uint64(unix.Getpagesize())

// patience is the hard limit of a child. In the test machine, whose processors
// are emulated, making a monitor alone can take half a minute.
const patience = 3 * time.Minute

// fastExit spares a child under the race detector the second that it waits at
// its exit.
var fastExit = []string{"GORACE=atexit_sleep_ms=0"}

// start makes a monitor, and skips the test where this process may not trace
// the kernel or the kernel cannot be traced at all.
func start(t *testing.T, cfg Config) *intercept.Monitor {
	t.Helper()
	m, err := New(cfg)
	if errors.Is(err, hca.ErrAccess) || errors.Is(err, hca.ErrNotSupported) && unix.Access("/sys/kernel/btf/vmlinux", unix.R_OK) != nil {
		t.Skip(err)
	}
	require.NoError(t, err)
	return m
}

// inChild runs body in a child process with a monitor on bpf.
func inChild(t *testing.T, body func(t *testing.T, m *intercept.Monitor)) {
	t.Helper()
	childtest.Run(t, patience, fastExit, func(t *testing.T) {
		m := start(t, Config{})
		body(t, m)
		require.NoError(t, m.Close())
	})
}

func pointer(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

func bytesOf(r hca.Range) []byte { return unsafe.Slice((*byte)(pointer(r.Addr)), r.Len) }

func mmap(t *testing.T, at uint64, length uint64, prot, flags, fd int) uint64 {
	t.Helper()
	p, err := unix.MmapPtr(fd, 0, pointer(at), uintptr(length), prot, flags)
	require.NoError(t, err)
	if flags&unix.MAP_FIXED == 0 {
		leaktest.Area(t, uint64(uintptr(p)), length)
	}
	return uint64(uintptr(p))
}

func munmap(t *testing.T, r hca.Range) {
	t.Helper()
	require.NoError(t, unix.MunmapPtr(pointer(r.Addr), uintptr(r.Len)))
}

func mremap(t *testing.T, r hca.Range, length uint64, flags int, to uint64) uint64 {
	t.Helper()
	p, err := unix.MremapPtr(pointer(r.Addr), uintptr(r.Len), pointer(to), uintptr(length), flags)
	require.NoError(t, err)
	return uint64(uintptr(p))
}

// area is address space that nobody else uses, on a page that is not aligned
// to anything larger: what is rounded to huge pages stays small there.
func area(t *testing.T, pages uint64) hca.Range {
	t.Helper()
	at := mmap(t, 0, (pages+2)*pageSize, unix.PROT_NONE, unix.MAP_SHARED|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE, -1)
	at += pageSize
	if at&pageSize == 0 {
		at += pageSize
	}
	return hca.Range{Addr: at, Len: pages * pageSize}
}

func part(r hca.Range, first, pages uint64) hca.Range {
	return hca.Range{Addr: r.Addr + first*pageSize, Len: pages * pageSize}
}

const (
	private = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	anyFile = unix.MAP_SHARED
)

// mapAt maps over r, writable, and touches every page.
func mapAt(t *testing.T, r hca.Range, flags, fd int) {
	t.Helper()
	require.Equal(t, r.Addr, mmap(t, r.Addr, r.Len, rw, flags|unix.MAP_FIXED, fd))
	for p := r.Addr; p < r.End(); p += pageSize {
		*(*byte)(pointer(p)) = 0xa5
	}
}

func peek(addr uint64) byte { return *(*byte)(pointer(addr)) }

// memory gives n pages of fresh private memory.
func memory(t *testing.T, n uint64) hca.Range {
	t.Helper()
	r := area(t, n)
	mapAt(t, r, private, -1)
	return r
}

// memfd gives a file in memory of n pages.
func memfd(t *testing.T, n uint64) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	require.NoError(t, unix.Ftruncate(fd, int64(n*pageSize)))
	return fd
}

// during runs do and gives the events that touch the range. Nothing need be
// waited for: an event is counted before the call acts. That anything may have
// changed can come at any time where programs are preempted, and is left out.
func during(t *testing.T, m *intercept.Monitor, near hca.Range, do func()) []hca.Event {
	t.Helper()
	events := allDuring(t, m, near, do)
	if preemptible() {
		events = slices.DeleteFunc(events, func(ev hca.Event) bool { return ev.Cause == hca.CauseLost })
	}
	return events
}

// allDuring leaves nothing out.
func allDuring(t *testing.T, m *intercept.Monitor, near hca.Range, do func()) []hca.Event {
	t.Helper()
	f, err := m.Subscribe(nil)
	require.NoError(t, err)
	defer f.Close()
	before := m.Counter().Load()
	do()
	var out []hca.Event
	var buf [3]hca.Event // small, so that Next is called more than once
	for n := f.Next(buf[:]); n > 0; n = f.Next(buf[:]) {
		for _, ev := range buf[:n] {
			if ev.Range.Overlaps(near) {
				out = append(out, ev)
			}
		}
	}
	if len(out) > 0 {
		require.Greater(t, m.Counter().Load(), before)
	}
	return out
}

// kept insists that a registration of r can be kept now.
func kept(t *testing.T, m *intercept.Monitor, r hca.Range) {
	t.Helper()
	require.Equal(t, hca.Watch{Kind: hca.MemOwned}, m.Watch(r))
}

func unmapped(r hca.Range) []hca.Event  { return []hca.Event{{Range: r, Cause: hca.CauseUnmap}} }
func discarded(r hca.Range) []hca.Event { return []hca.Event{{Range: r, Cause: hca.CauseDiscard}} }
