//go:build linux && (amd64 || arm64)

package bpf

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
	"example.com/holdfast/intercept/internal/eventtest"
	"example.com/holdfast/internal/childtest"
)

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

// inChild runs body in a child process with a monitor on bpf, which is closed at
// the end, also of a body that skips.
func inChild(t *testing.T, body func(t *testing.T, m *intercept.Monitor)) {
	t.Helper()
	childtest.Run(t, patience, fastExit, func(t *testing.T) {
		m := start(t, Config{})
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		body(t, m)
	})
}

// The memory that tests use.
var (
	pageSize = eventtest.PageSize
	pointer  = eventtest.Pointer
	bytesOf  = eventtest.Bytes
	mmap     = eventtest.Mmap
	munmap   = eventtest.Munmap
	mremap   = eventtest.Mremap
	area     = eventtest.Area
	part     = eventtest.Part
	mapAt    = eventtest.MapAt
	memory   = eventtest.Memory
	memfd    = eventtest.Memfd
	shm      = eventtest.Shm
	peek     = eventtest.Peek
)

const (
	rw      = eventtest.RW
	private = eventtest.Private
	anyFile = unix.MAP_SHARED
)

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

// watch is m.Watch of memory that no test has anything under way on. Where programs
// are preempted a slot can stay for a while when its call is over, or stand for a
// call of the Go runtime as one on everything: until that is gone it is asked again.
func watch(t *testing.T, m *intercept.Monitor, r hca.Range) (w hca.Watch) {
	t.Helper()
	if w = m.Watch(r); preemptible() && w.Why == hca.UnkeptUnsettled {
		require.Eventually(t, func() bool { w = m.Watch(r); return w.Why != hca.UnkeptUnsettled }, 10*time.Second, time.Millisecond)
	}
	return w
}

// kept insists that a registration of r can be kept now.
func kept(t *testing.T, m *intercept.Monitor, r hca.Range) {
	t.Helper()
	require.Equal(t, hca.Watch{Kind: hca.MemOwned}, watch(t, m, r))
}

func unmapped(r hca.Range) []hca.Event  { return []hca.Event{{Range: r, Cause: hca.CauseUnmap}} }
func discarded(r hca.Range) []hca.Event { return []hca.Event{{Range: r, Cause: hca.CauseDiscard}} }
