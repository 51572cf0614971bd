//go:build linux && (amd64 || arm64)

package bpf

import (
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/internal/childtest"
)

// tally is what one or many calls of TestPreempted came to.
type tally struct {
	announced atomic.Uint64 // by an event of their own
	lost      atomic.Uint64 // by one that says that anything may have changed
	unsettled atomic.Uint64 // the counter was unsettled when the call returned
	silent    atomic.Uint64 // by nothing: a hit could have been stale

	work atomic.Uint64 // done between the calls
}

// discard throws a page away by a raw system call and finds out how a cache
// would have learned of it.
//
//go:norace
func (c *tally) discard(k *kernel, page hca.Range) unix.Errno {
	from := k.word(atClaim).Load()
	_, _, errno := unix.RawSyscall(unix.SYS_MADVISE, uintptr(page.Addr), uintptr(page.Len), unix.MADV_DONTNEED)
	switch {
	case errno != 0:
		return errno
	case k.word(atCounter).Load()&hca.Unsettled != 0:
		c.unsettled.Add(1)
		return 0
	}
	to := k.word(atClaim).Load()
	if to-from > uint64(k.ring)/2 {
		c.lost.Add(1) // what a feed is told that is so late
		return 0
	}
	for ; from < to; from++ {
		ev, _, ok := k.events.At(from)
		switch {
		case !ok || !ev.Range.Overlaps(page):
		case ev.Cause == hca.CauseLost:
			c.lost.Add(1)
			return 0
		default:
			c.announced.Add(1)
			return 0
		}
	}
	c.silent.Add(1)
	return 0
}

// crowd has threads of all kinds discard pages on one processor until they
// have done it so often, or enough says so: some share it fairly with different
// weights, some sleep and come in between with a real-time priority.
func crowd(t *testing.T, k *kernel, c *tally, calls int, enough func() bool) {
	t.Helper()
	const fair, urgent = 4, 2
	var cpus unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &cpus))
	var one unix.CPUSet
	for i := range len(cpus) * 64 {
		if cpus.IsSet(i) {
			one.Set(i)
			break
		}
	}
	pages := memory(t, fair+urgent)
	var done atomic.Int64
	ended := make(chan error)
	for i := range fair + urgent {
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with it
			page := part(pages, i, 1)
			err := unix.SchedSetaffinity(0, &one)
			if err == nil && i < urgent {
				// Without the right to it they sleep and come back all the same.
				err = realtime()
				if err == unix.EPERM {
					err = nil
				}
			} else if err == nil {
				err = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), (i-urgent)*3)
			}
			for err == nil && done.Add(1) <= int64(calls) && !enough() {
				if i < urgent {
					nap := unix.NsecToTimespec(int64(100_000 + rand.IntN(2_000_000)))
					unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&nap)), 0, 0)
				} else {
					for range rand.IntN(1000) { // be elsewhere as well
						c.work.Add(1)
					}
				}
				if errno := c.discard(k, page); errno != 0 {
					err = errno
				}
			}
			unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0) // its exit is seen, whatever was missed
			ended <- err
		}()
	}
	for range fair + urgent {
		require.NoError(t, <-ended)
	}
}

// realtime makes the calling thread one of the lowest real-time priority.
func realtime() error {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	return unix.SchedSetAttr(0, &attr, 0)
}

// passedBy is how often the kernel has passed by a program of ours, and by the
// one that must never be.
func passedBy(t *testing.T, k *kernel) (any, guard uint64) {
	for i, p := range k.programs {
		stats, err := p.Stats()
		require.NoError(t, err)
		info, err := p.Info()
		require.NoError(t, err)
		if info.Name == nameBlind {
			guard += stats.RecursionMisses
		}
		any += stats.RecursionMisses
		t.Logf("program %d, %s, was passed by %d times", i, info.Name, stats.RecursionMisses)
	}
	return any, guard
}

// preemptedCalls is how many calls TestPreempted makes.
const preemptedCalls = "HOLDFAST_BPF_CALLS"

// Threads that take the processor from each other in the middle of a program
// make the kernel pass by programs, from Linux 7 on. No call is ever silent for
// that. HOLDFAST_BPF_CALLS says how many calls to make (5,000).
func TestPreempted(t *testing.T) {
	calls := 5_000
	if s := os.Getenv(preemptedCalls); s != "" {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		calls = n
	}
	childtest.Run(t, patience+time.Duration(calls)*10*time.Millisecond, append(fastExit, "GOMAXPROCS=16"), func(t *testing.T) {
		k := startSource(t, Config{Ring: 1 << 17})
		defer k.unmap()
		defer k.Stop()
		var c tally
		crowd(t, k, &c, calls, func() bool { return false })
		any, guard := passedBy(t, k)
		t.Logf("%d announced, %d by a general event, %d while unsettled, %d silent; %d programs passed by; a blind processor %d times",
			c.announced.Load(), c.lost.Load(), c.unsettled.Load(), c.silent.Load(), any, k.word(atBlind).Load())
		require.Zero(t, c.silent.Load())
		require.Zero(t, guard)
		require.Zero(t, k.word(atBroken).Load())
		require.Positive(t, c.announced.Load())
		// And what was missed leaves nothing behind.
		require.Eventually(t, func() bool {
			return k.word(atCounter).Load()&hca.Unsettled == 0 && !k.busy(0, top)
		}, 10*time.Second, time.Millisecond)
	})
}

// Without the program that looks after blind processors calls are silent: the
// test above can fail.
func TestOmit_Blind(t *testing.T) {
	if !preemptible() {
		t.Skip("no program is preempted on this kernel (before Linux 7)")
	}
	childtest.Run(t, patience, append(fastExit, "GOMAXPROCS=16"), func(t *testing.T) {
		require.NoError(t, start(t, Config{}).Close()) // skips where there is none
		k, err := open(Config{Ring: 1 << 17}, false)
		require.NoError(t, err)
		defer k.unmap()
		defer k.Stop()
		var c tally
		crowd(t, k, &c, 1<<30, func() bool { return c.silent.Load() > 0 })
		t.Logf("%d announced before one was silent", c.announced.Load())
	})
}

// blindfold makes every processor blind until the answer is called, as if a
// task waited there that was preempted in the middle of a program.
func blindfold(k *kernel, cpus int) (remove func()) {
	for cpu := range cpus {
		row := uintptr(rowsAt(k.ring) + cpu*rowSize)
		k.word(row + rowTasks).Store(1 << 40) // the number of no task
		k.word(row).Store(1)
	}
	return func() {
		for cpu := range cpus {
			row := uintptr(rowsAt(k.ring) + cpu*rowSize)
			k.word(row + rowTasks).Store(0)
			k.word(row).Store(0)
		}
	}
}

// rows is how many there are.
func rows(k *kernel) int { return (int(k.size) - rowsAt(k.ring)) / rowSize }

// quiet waits until no thread of ours is on a processor that it got blind, so
// that the counter settles. Each gives its own up now and then.
func quiet(t *testing.T, k *kernel) {
	require.Eventually(t, func() bool { return k.word(atCounter).Load()&hca.Unsettled == 0 }, 10*time.Second, time.Millisecond)
}

// While a thread of ours runs on a blind processor nothing is vouched for;
// after that anything may have changed.
func TestBlind_Counter(t *testing.T) {
	childtest.Run(t, patience, fastExit, func(t *testing.T) {
		if preemptible() {
			t.Skip("on this kernel the program fills the rows itself: TestPreempted")
		}
		k := startSource(t, Config{})
		defer k.unmap()
		defer k.Stop()
		quiet(t, k)
		from := k.word(atClaim).Load()
		remove := blindfold(k, rows(k))
		// This very thread gives the processor up and gets one again.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		nap := unix.NsecToTimespec(1e6)
		for unix.Nanosleep(&nap, nil) == unix.EINTR {
		}
		require.NotZero(t, k.word(atCounter).Load()&hca.Unsettled, "this thread runs")
		require.Positive(t, k.word(atBlind).Load())
		remove()
		quiet(t, k)
		var general int
		for ; from < k.events.Done(); from++ {
			if ev, _, ok := k.events.At(from); ok && ev.Cause == hca.CauseLost && ev.Range == hca.Whole {
				general++
			}
		}
		require.Positive(t, general)
		require.Zero(t, k.word(atBroken).Load())
	})
}

// A thread that gives up a blind processor inside of a call is taken for one
// that may be doing anything, until the call returns.
func TestBlind_Inside(t *testing.T) {
	childtest.Run(t, patience, fastExit, func(t *testing.T) {
		if preemptible() {
			t.Skip("on this kernel the program fills the rows itself: TestPreempted")
		}
		k := startSource(t, Config{})
		defer k.unmap()
		defer k.Stop()
		a, other := memory(t, 1), memory(t, 1)
		g := newGate(t)
		g.over(t, a)
		ready, begin, done := make(chan struct{}), make(chan struct{}), make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with it
			ready <- struct{}{}
			<-begin
			done <- unix.Madvise(bytesOf(a), unix.MADV_DONTNEED)
		}()
		<-ready
		remove := blindfold(k, rows(k))
		begin <- struct{}{}
		g.held(t)
		remove()
		quiet(t, k)
		require.True(t, k.busy(other.Addr, other.End()))
		g.let(t)
		require.NoError(t, <-done)
		require.Eventually(t, func() bool { return !k.busy(other.Addr, other.End()) }, 10*time.Second, time.Millisecond)
	})
}

// A slot whose operation ended unseen does not stay: the next exit of a system
// call of its thread frees it, and an operation that comes before that takes it
// over.
func TestBlind_EndMissed(t *testing.T) {
	childtest.Run(t, patience, fastExit, func(t *testing.T) {
		if preemptible() {
			t.Skip("on this kernel the program fills the rows itself: TestPreempted")
		}
		k := startSource(t, Config{})
		defer k.unmap()
		defer k.Stop()
		a := memory(t, 1)
		g := newGate(t)
		g.over(t, a)
		done := make(chan error)
		var again atomic.Bool
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with it
			done <- unix.Madvise(bytesOf(a), unix.MADV_DONTNEED)
			for !again.Load() {
				// No system call, so no exit of one.
			}
			done <- unix.Madvise(bytesOf(a), unix.MADV_DONTNEED)
		}()
		// How the kernel numbers the thread, and where it looks for a slot.
		g.held(t)
		at := slotOf(k, a)
		require.GreaterOrEqual(t, at, 0)
		owner := k.op(at).owner.Load()
		g.let(t)
		require.NoError(t, <-done)
		require.Eventually(t, func() bool { return k.op(at).owner.Load() == 0 }, 10*time.Second, time.Millisecond)

		// As if the exit had been missed.
		k.word(atActive).Add(1)
		k.op(at).lo.Store(0)
		k.op(at).owner.Store(owner)
		again.Store(true)
		g.held(t)
		slots := 0
		for i := range maxOps {
			if k.op(i).owner.Load() == owner {
				slots++
			}
		}
		require.Equal(t, 1, slots, "one thread, one slot")
		require.True(t, k.busy(a.Addr, a.End()))
		g.let(t)
		require.NoError(t, <-done)
		require.Eventually(t, func() bool { return k.op(at).owner.Load() == 0 && k.word(atActive).Load() == 0 }, 10*time.Second, time.Millisecond)
	})
}

// slotOf finds the slot of an operation that begins where r does, -1: none.
func slotOf(k *kernel, r hca.Range) int {
	for i := range maxOps {
		if o := k.op(i); o.owner.Load() != 0 && o.lo.Load() == r.Addr {
			return i
		}
	}
	return -1
}
