//go:build linux && cgo && (amd64 || arm64 || riscv64 || loong64)

package intercept

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept/internal/eventtest"
	"example.com/holdfast/intercept/internal/uffd"
	"example.com/holdfast/internal/childtest"
)

// fastExit spares a child under the race detector the second that it waits at
// its exit.
var fastExit = []string{"GORACE=atexit_sleep_ms=0"}

// inChild runs body in a child process with a monitor on userfaultfd.
func inChild(t *testing.T, body func(t *testing.T, m *Monitor)) {
	t.Helper()
	childtest.Run(t, 30*time.Second, fastExit, func(t *testing.T) {
		m, err := Userfault()
		require.NoError(t, err)
		body(t, m)
		require.NoError(t, m.kernel.fault())
		require.NoError(t, m.Close())
	})
}

// The memory that tests use.
var (
	area   = eventtest.Area
	part   = eventtest.Part
	mapAt  = eventtest.MapAt
	memory = eventtest.Memory
	memfd  = eventtest.Memfd
	shm    = eventtest.Shm
	poke   = eventtest.Poke
	peek   = eventtest.Peek
)

const (
	rw      = eventtest.RW
	private = eventtest.Private
	shared  = eventtest.Shared
)

// together is memory that is verified together: it lies in one window.
func together(t *testing.T, n int) hca.Range {
	t.Helper()
	space := area(t, 2*window/int(pageSize))
	r := hca.Range{Addr: (space.Addr + window - 1) &^ (window - 1), Len: uint64(n) * pageSize}
	mapAt(t, r, private, -1)
	return r
}

// armed asks the kernel, by means of the test's own, whether all of r is
// watched by somebody.
func armed(t *testing.T, r hca.Range) bool {
	t.Helper()
	fd, err := unix.Open("/proc/self/pagemap", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	all, err := uffd.NewScanner(fd).AllArmed(r.Addr, r.End())
	require.NoError(t, err)
	return all
}

// watched watches r and insists that it is foreign memory then.
func watched(t *testing.T, m *Monitor, r hca.Range) hca.Watch {
	t.Helper()
	w := m.Watch(r)
	require.Equal(t, hca.MemForeign, w.Kind, "%v", w.Why)
	require.NotZero(t, w.Domains)
	return w
}

// yield lets other threads run: the tests that race two threads against the
// reader may have fewer processors than threads.
func yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// during runs do and gives every event that arrived by its end. That nothing
// else arrived is known without waiting: an event that is caused afterwards on
// each descriptor ends the list.
func during(t *testing.T, m *Monitor, do func()) []hca.Event {
	t.Helper()
	// Every second page of a reserve, so that none is next to another: which
	// descriptor one falls to depends on its address.
	reserve := area(t, 512)
	c := m.newCursor()
	do()
	var last hca.Range
	all := uint32(1)<<len(m.kernel.fds) - 1
	for i, seen := 0, uint32(0); seen != all; i += 2 {
		require.Less(t, i, 512)
		last = part(reserve, i, 1)
		mapAt(t, last, private, -1)
		seen |= watched(t, m, last).Domains
		_, err := rawMmap(last.Addr, uintptr(pageSize), unix.PROT_NONE, private|unix.MAP_FIXED, -1, 0)
		require.NoError(t, err)
	}
	settle(t, m)
	var out []hca.Event
	var buf [3]hca.Event // small, so that Next is called more than once
	ended := false
	for n := c.next(buf[:]); n > 0; n = c.next(buf[:]) {
		for _, ev := range buf[:n] {
			ended = ended || ev.Range == last
			if !reserve.Contains(ev.Range) {
				out = append(out, ev)
			}
		}
	}
	require.True(t, ended, "the event that was caused last did not arrive")
	return out
}

func unmapEvent(r hca.Range) hca.Event   { return hca.Event{Range: r, Cause: hca.CauseUnmap} }
func discardEvent(r hca.Range) hca.Event { return hca.Event{Range: r, Cause: hca.CauseDiscard} }
func remapEvent(r hca.Range) hca.Event   { return hca.Event{Range: r, Cause: hca.CauseRemap} }
