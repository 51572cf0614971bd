//go:build linux && cgo && (amd64 || arm64 || riscv64 || loong64)

package intercept

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept/internal/eventtest"
	"example.com/holdfast/intercept/internal/uffd"
	"example.com/holdfast/internal/childtest"
)

// sysPoll is what the C library makes poll of.
var sysPoll = []uintptr{unix.SYS_PPOLL}

func descriptors(t *testing.T) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(e)
}

// readers counts the reader threads of this process.
func readers(t *testing.T) int {
	t.Helper()
	names, err := filepath.Glob("/proc/self/task/*/comm")
	require.NoError(t, err)
	n := 0
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(b), "holdfast") {
			n++
		}
	}
	return n
}

// noReaders waits until there is none: a thread that has been joined is listed a
// little longer.
func noReaders(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return readers(t) == 0 }, 10*time.Second, time.Millisecond)
}

func TestStartAndClose(t *testing.T) {
	childtest.Run(t, 20*time.Second, fastExit, func(t *testing.T) {
		// The poller of the runtime comes with the first monitor and stays.
		m, err := Userfault()
		require.NoError(t, err)
		require.NoError(t, m.Close())
		fds, goroutines := descriptors(t), runtime.NumGoroutine()
		old := m
		for _, cfg := range []Config{{}, {Descriptors: 1}, {Descriptors: 32, Ring: 64}, {Strict: true}} {
			m, err := UserfaultConfig(cfg)
			require.NoError(t, err)
			require.Equal(t, 1, readers(t))
			// The numbers of the old one's descriptors are another's now.
			require.True(t, old.UnderWay(1))
			require.Contains(t, m.String(), "userfaultfd")
			f, err := m.Subscribe(nil)
			require.NoError(t, err)
			r, err := m.Exercise()
			require.NoError(t, err)
			settle(t, m)
			require.Equal(t, []hca.Event{unmapEvent(r)}, drain(f))
			require.ErrorIs(t, m.Close(), hca.ErrBusy)
			require.Equal(t, 1, m.Stats().Feeds)
			require.NoError(t, f.Close())
			require.NoError(t, m.Close())
			require.ErrorIs(t, m.Close(), hca.ErrClosed)
			require.Contains(t, m.String(), "closed")
			noReaders(t)
			require.Equal(t, fds, descriptors(t))
			goneBack(t, goroutines)
		}
	})
}

// goneBack waits until there are no more goroutines than before: one that has told
// that it is done may still have a few instructions to go.
func goneBack(t *testing.T, before int) {
	t.Helper()
	for began := time.Now(); runtime.NumGoroutine() > before; runtime.Gosched() {
		require.Less(t, time.Since(began), 10*time.Second, "%d goroutines, %d before", runtime.NumGoroutine(), before)
	}
}

// Closed with memory that it knew: see closedAnswers.
func TestClosedUserfault(t *testing.T) {
	childtest.Run(t, 20*time.Second, fastExit, func(t *testing.T) {
		m, err := Userfault()
		require.NoError(t, err)
		a := memory(t, 2)
		watched(t, m, a)
		b, err := m.Mmap(-1, 0, int(pageSize), rw, private)
		require.NoError(t, err)
		closedAnswers(t, m)
		require.Equal(t, hca.MemUnknown, m.source.Kind(a.Addr, a.End()), "what was known, too")
		require.NoError(t, m.Madvise(b, unix.MADV_DONTNEED))
		require.NoError(t, m.Munmap(b))
		require.ErrorIs(t, m.Munmap(b[1:]), unix.EINVAL)
	})
}

// A child that was forked and has not called exec holds copies of the
// descriptors, so that closing ours does not end them. Nobody may be left
// waiting for events that nobody will read: what was watched no longer is.
func TestCloseWhileForkedChildLives(t *testing.T) {
	childtest.Run(t, 30*time.Second, fastExit, func(t *testing.T) {
		other, err := Userfault() // is let be
		require.NoError(t, err)
		theirs := memory(t, 1)
		watched(t, other, theirs)
		for range 6 {
			closeWhileForkedChildLives(t)
		}
		require.True(t, armed(t, theirs))
		require.Equal(t, []hca.Event{unmapEvent(theirs)}, during(t, other, func() { require.NoError(t, rawMunmap(theirs.Addr, uintptr(theirs.Len))) }))
		require.NoError(t, other.Close())
	})
}

func closeWhileForkedChildLives(t *testing.T) {
	m, err := Userfault()
	require.NoError(t, err)
	var all []hca.Range
	for domains := uint32(0); len(all) < 8 || domains != 1<<len(m.kernel.fds)-1; {
		a := memory(t, 2)
		domains |= watched(t, m, a).Domains
		all = append(all, a)
	}
	to := area(t, 2) // what was moved is not known, and watched
	_, err = rawMremap(all[0].Addr, uintptr(all[0].Len), uintptr(all[0].Len), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, to.Addr)
	require.NoError(t, err)
	all[0] = to

	release := eventtest.ForkAndHold(t)
	var churn repeating
	var churned atomic.Int64
	for i := range 4 { // threads that wait for events at that moment
		r := all[i+1]
		churn.start(func() {
			m.Watch(r)
			if err := rawMadvise(r.Addr, uintptr(r.Len), unix.MADV_DONTNEED); err != nil {
				panic(err)
			}
			churned.Add(1)
		})
	}
	for churned.Load() < 20 {
		runtime.Gosched()
	}
	require.NoError(t, m.Close())
	churn.end()
	for _, r := range all {
		require.False(t, armed(t, r))
		require.NoError(t, rawMunmap(r.Addr, uintptr(r.Len)))
	}
	release()
}

// A source that delivers nothing, or not everything, is found out at start and
// leaves nothing behind. The kernel makes one if it is not asked for events.
func TestSilentSourceIsRefused(t *testing.T) {
	childtest.Run(t, 20*time.Second, fastExit, func(t *testing.T) {
		m, err := Userfault()
		require.NoError(t, err)
		require.NoError(t, m.Close())
		fds, goroutines := descriptors(t), runtime.NumGoroutine()
		for missing, word := range map[uint64]string{
			uffd.FeatureEventUnmap | uffd.FeatureEventRemap | uffd.FeatureEventRemove: "madvise(MADV_DONTNEED): no discard event arrived",
			uffd.FeatureEventRemove: "madvise(MADV_DONTNEED): no discard event arrived",
			uffd.FeatureEventRemap:  "mremap: no remap event arrived",
			uffd.FeatureEventUnmap:  "munmap: no unmap event arrived",
		} {
			m, err := userfault(Config{}, uffd.Features&^missing)
			require.Nil(t, m)
			require.ErrorIs(t, err, hca.ErrNotSupported)
			require.ErrorContains(t, err, "self-test of descriptor 0: "+word)
			require.Equal(t, fds, descriptors(t))
			goneBack(t, goroutines)
			noReaders(t)
		}
		// A feature that no kernel has is what a kernel before 6.7 answers to
		// the one that is needed.
		_, err = userfault(Config{}, uffd.Features|1<<40)
		require.ErrorIs(t, err, hca.ErrNotSupported)
		require.ErrorContains(t, err, "6.7")
		require.Equal(t, fds, descriptors(t))
	})
}

func TestForbidden(t *testing.T) {
	childtest.Run(t, 20*time.Second, fastExit, func(t *testing.T) {
		childtest.Forbid(t, unix.SYS_USERFAULTFD)
		m, err := Userfault()
		require.Nil(t, m)
		require.ErrorIs(t, err, hca.ErrAccess)
		require.ErrorContains(t, err, "seccomp")

		m, err = Auto()
		require.NoError(t, err)
		require.ErrorIs(t, m.Lesser(), hca.ErrAccess)
		require.Contains(t, m.String(), "explicit calls only")
		require.Contains(t, m.String(), "seccomp")
		b, err := m.Mmap(-1, 0, int(pageSize), rw, private)
		require.NoError(t, err)
		require.Equal(t, hca.MemOwned, m.Watch(hca.RangeOf(b)).Kind)
		require.NoError(t, m.Munmap(b))
		require.NoError(t, m.Close())
	})
}

func TestAutoTakesTheBest(t *testing.T) {
	childtest.Run(t, 20*time.Second, fastExit, func(t *testing.T) {
		m, err := Auto()
		require.NoError(t, err)
		require.NoError(t, m.Lesser())
		require.Contains(t, m.String(), "userfaultfd")
		require.NoError(t, m.Close())
	})
}

// An ordinary user, without any privilege, has all of it.
func TestUnprivileged(t *testing.T) {
	childtest.Run(t, 20*time.Second, fastExit, func(t *testing.T) {
		childtest.DropPrivileges(t, 64_211, 0)
		m, err := Userfault()
		require.NoError(t, err)
		a := memory(t, 2)
		watched(t, m, a)
		require.Equal(t, []hca.Event{unmapEvent(a)}, during(t, m, func() { require.NoError(t, rawMunmap(a.Addr, uintptr(a.Len))) }))
		require.NoError(t, m.Close())
	})
}

// The C library tells every thread when the user changes; the reader thread,
// which takes no signals, must not make it wait for ever.
func TestUserChangesUnderMonitor(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		if os.Geteuid() != 0 {
			t.Skip("needs root, to change the user")
		}
		require.NoError(t, syscall.Setuid(64_212))
		a := memory(t, 2)
		watched(t, m, a)
		require.Equal(t, []hca.Event{unmapEvent(a)}, during(t, m, func() { require.NoError(t, rawMunmap(a.Addr, uintptr(a.Len))) }))
	})
}

// Not dumpable, which a process is that changed its user by itself: /proc is
// closed to it, and the error says what to do.
func TestNotDumpable(t *testing.T) {
	childtest.Run(t, 20*time.Second, fastExit, func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root, to change the user")
		}
		require.NoError(t, syscall.Setuid(64_213))
		m, err := Userfault()
		require.Nil(t, m)
		require.ErrorIs(t, err, hca.ErrAccess)
		require.ErrorContains(t, err, "PR_SET_DUMPABLE")
	})
}

func TestOutOfDescriptors(t *testing.T) {
	childtest.Run(t, 20*time.Second, fastExit, func(t *testing.T) {
		m, err := Userfault() // the poller is there now
		require.NoError(t, err)
		require.NoError(t, m.Close())
		fds := descriptors(t)
		var was unix.Rlimit
		require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
		for room := range uint64(8) {
			lim := unix.Rlimit{Cur: numbersFor(t, room), Max: was.Max}
			require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &lim))
			m, err := Userfault() // 4, two files of /proc, two eventfds
			require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
			require.ErrorIs(t, err, hca.ErrNoMemory, "room for %d", room)
			require.ErrorContains(t, err, "limits")
			require.Nil(t, m)
			require.Equal(t, fds, descriptors(t))
		}
	})
}

// numbersFor is the limit under which so many numbers of descriptors are free.
func numbersFor(t *testing.T, room uint64) uint64 {
	t.Helper()
	for n, free := uint64(0), uint64(0); ; n++ {
		if free == room {
			return n
		}
		if _, err := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0); err != nil {
			free++
		}
	}
}

// If the reader ever fails, nothing is believed any more, it is said, and
// nobody is left waiting.
func TestReaderFault(t *testing.T) {
	childtest.Run(t, 20*time.Second, fastExit, func(t *testing.T) {
		m, err := Userfault()
		require.NoError(t, err)
		// Two pages on different descriptors.
		var a, b hca.Range
		for i := 0; ; i++ {
			r := memory(t, 1)
			switch watched(t, m, r).Domains {
			case 1:
				a = r
			case 2:
				b = r
			}
			if a.Len != 0 && b.Len != 0 {
				break
			}
		}
		// Another file in the place of a descriptor, one that poll says is
		// readable and read says is not an event.
		null, err := unix.Open("/", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		defer unix.Close(null)
		require.NoError(t, unix.Dup3(null, m.kernel.fds[0], unix.O_CLOEXEC))
		for range 3 {
			require.NoError(t, rawMunmap(b.Addr, uintptr(b.Len)))
			mapAt(t, b, private, -1)
		}
		for began := time.Now(); m.kernel.fault() == nil; runtime.Gosched() {
			require.Less(t, time.Since(began), 5*time.Second)
		}
		require.Contains(t, m.String(), "BROKEN")
		require.NotZero(t, m.counter.Load()&hca.Unsettled)
		require.NoError(t, rawMunmap(a.Addr, uintptr(a.Len)))
		require.Equal(t, hca.UnkeptNoSource, m.Watch(b).Why)
		require.Equal(t, hca.MemUnknown, m.Kind(b))
		require.ErrorIs(t, m.Settled(b), hca.ErrClosed)
		require.NoError(t, m.Close())
	})
}

// A program that shuts itself in after the start, and forgets what the reader
// needs: poll, and that so many descriptors are allowed as it polls. The next
// event is delivered, and then nothing is believed any more.
func TestReaderShutIn(t *testing.T) {
	for name, shut := range map[string]func(t *testing.T, was unix.Rlimit) unix.Errno{
		"Forbidden": func(t *testing.T, was unix.Rlimit) unix.Errno {
			childtest.Forbid(t, sysPoll...)
			return unix.EPERM
		},
		"NoDescriptors": func(t *testing.T, was unix.Rlimit) unix.Errno {
			require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}))
			return unix.EINVAL
		},
	} {
		t.Run(name, func(t *testing.T) {
			childtest.Run(t, 20*time.Second, fastExit, func(t *testing.T) {
				var was unix.Rlimit
				require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
				m, err := Userfault()
				require.NoError(t, err)
				a := memory(t, 4)
				watched(t, m, a)
				why := shut(t, was)
				for i := range 4 { // nobody waits for ever
					require.NoError(t, rawMunmap(part(a, i, 1).Addr, uintptr(pageSize)))
				}
				for began := time.Now(); m.kernel.fault() == nil; runtime.Gosched() {
					require.Less(t, time.Since(began), 5*time.Second)
				}
				require.ErrorIs(t, m.kernel.fault(), why)
				require.Contains(t, m.String(), "BROKEN")
				require.NotZero(t, m.counter.Load()&hca.Unsettled)
				require.NoError(t, m.Close())
				require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
			})
		})
	}
}

// Somebody closes descriptors that are not his, all of them perhaps. The reader
// still waits on what they were, so nothing goes unseen before it finds out.
func TestDescriptorsClosed(t *testing.T) {
	childtest.Run(t, 20*time.Second, fastExit, func(t *testing.T) {
		m, err := Userfault()
		require.NoError(t, err)
		a, b := memory(t, 2), memory(t, 2)
		watched(t, m, a)
		watched(t, m, b)
		for _, fd := range m.kernel.fds {
			require.NoError(t, unix.Close(fd))
		}
		require.True(t, armed(t, a))
		g := settle(t, m)
		require.True(t, m.UnderWay(1), "a probe that cannot be made proves nothing")
		require.NoError(t, rawMunmap(a.Addr, uintptr(a.Len)))
		for began := time.Now(); m.counter.Load() == g; runtime.Gosched() {
			require.Less(t, time.Since(began), 5*time.Second, "it went unseen")
		}
		for began := time.Now(); m.kernel.fault() == nil; runtime.Gosched() {
			require.Less(t, time.Since(began), 5*time.Second)
		}
		require.NotZero(t, m.counter.Load()&hca.Unsettled)
		require.Equal(t, hca.UnkeptNoSource, m.Watch(b).Why)
		require.NoError(t, rawMunmap(b.Addr, uintptr(b.Len)))
		require.NoError(t, m.Close())
	})
}

// Whoever makes a cache while something is under way that could be about any
// memory is not told that the monitor is no good: it passes, and is waited for.
func TestExerciseWaitsForWhatIsUnderWay(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		op := m.Begin(hca.Whole, hca.CauseOwner)
		exercised := make(chan error, 1)
		go func() {
			_, err := m.Exercise()
			exercised <- err
		}()
		for range 10_000 {
			select {
			case err := <-exercised:
				op.End()
				t.Fatalf("it was not waited for: %v", err)
			default:
				runtime.Gosched()
			}
		}
		op.End()
		require.NoError(t, <-exercised)
	})
}
