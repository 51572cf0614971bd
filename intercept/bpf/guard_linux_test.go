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

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept/internal/eventtest"
	"example.com/holdfast/internal/childtest"
)

// tally is what one or many calls of TestPreempted came to.
type tally struct {
	announced atomic.Uint64 // by an event of their own
	lost      atomic.Uint64 // by one that says that anything may have changed
	unsettled atomic.Uint64 // the counter was unsettled when the call returned
	settled   atomic.Uint64 // of these, it settled while the thread waited for that
	silent    atomic.Uint64 // by nothing: a hit could have been stale

	work atomic.Uint64 // done between the calls
}

// discard throws a page away by a raw system call and finds out how a cache
// would have learned of it: at once by an event, or because nothing is vouched for,
// and then by an event when something is again.
//
//go:norace
func (c *tally) discard(k *kernel, page hca.Range) unix.Errno {
	from := k.word(atClaim).Load()
	_, _, errno := unix.RawSyscall(unix.SYS_MADVISE, uintptr(page.Addr), uintptr(page.Len), unix.MADV_DONTNEED)
	if errno != 0 {
		return errno
	}
	if k.word(atCounter).Load()&hca.Unsettled != 0 {
		c.unsettled.Add(1)
		// Some other thread may be the reason, and go on being it.
		for tries := 0; k.word(atCounter).Load()&hca.Unsettled != 0; tries++ {
			if tries == 100 {
				return 0
			}
			nap := unix.NsecToTimespec(10_000)
			unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&nap)), 0, 0)
		}
		c.settled.Add(1)
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
	pages := memory(t, fair+urgent)
	var done atomic.Int64
	ended := make(chan error)
	for i := range fair + urgent {
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with it
			page := part(pages, i, 1)
			err := onOne()
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

// passedBy is how often the kernel has passed by the entry, another program of
// ours, and the one that must never be.
func passedBy(t *testing.T, k *kernel) (entry, other, guard uint64) {
	for _, p := range k.programs {
		stats, err := p.Stats()
		require.NoError(t, err)
		info, err := p.Info()
		require.NoError(t, err)
		switch info.Name {
		case nameGuard:
			guard += stats.RecursionMisses
		case nameEnter:
			entry += stats.RecursionMisses
		default:
			other += stats.RecursionMisses
		}
	}
	return entry, other, guard
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
		entry, other, guard := passedBy(t, k)
		t.Logf("%d announced, %d by a general event, %d while unsettled (%d until it settled), %d silent; passed by: the entry %d times, other programs %d, the guard %d; %d stints without the entry; broken %d",
			c.announced.Load(), c.lost.Load(), c.unsettled.Load(), c.settled.Load(), c.silent.Load(), entry, other, guard, k.word(atBlind).Load(), k.word(atBroken).Load())
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

// Without the guard calls are silent, on a kernel that passes programs by: the
// test above can fail.
func TestOmit_Guard(t *testing.T) {
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
		for range 40 {
			crowd(t, k, &c, 5_000, func() bool { return c.silent.Load() > 0 })
			if c.silent.Load() > 0 {
				t.Logf("%d announced before one was silent", c.announced.Load())
				return
			}
		}
		entry, _, _ := passedBy(t, k)
		require.Zero(t, entry, "no call was silent, though the entry was passed by")
		t.Skipf("this kernel passed no entry by in %d calls", c.announced.Load())
	})
}

// inStints runs body in a child with the programs and the guard. On a kernel that
// preempts programs the rows fill themselves: see TestPreempted.
func inStints(t *testing.T, body func(t *testing.T, k *kernel, pretend func(programs ...int) (stop func()))) {
	t.Helper()
	// A signal of the Go scheduler ends in a system call of its own. Without them a
	// loop can stop the collector for ever.
	childtest.Run(t, patience, append(fastExit, "GODEBUG=asyncpreemptoff=1", "GOGC=off", "GOMAXPROCS=8"), func(t *testing.T) {
		if preemptible() {
			t.Skip("on this kernel programs are passed by in earnest: TestPreempted")
		}
		k := startSource(t, Config{})
		defer k.unmap()
		defer k.Stop()
		at := nonzero(t, k)
		body(t, k, func(programs ...int) func() { return pretend(k, at, programs...) })
	})
}

// pretend makes the guard find, on every processor, that somebody is in the middle
// of the programs with these places in a row, until the answer is called: it has it
// read a word of the kernel that is never 0, at nonzero, in the place of the count.
func pretend(k *kernel, nonzero uint64, programs ...int) (stop func()) {
	var undo []func()
	for cpu := range rows(k) {
		for _, i := range programs {
			at := k.row(cpu, rowCount+8*uintptr(i))
			was := at.Swap(nonzero)
			undo = append(undo, func() { at.Store(was) })
		}
	}
	return func() {
		for _, f := range undo {
			f()
		}
	}
}

// nonzero is where an address space, ours, begins in the kernel: with the count of
// its users.
func nonzero(t *testing.T, k *kernel) uint64 {
	b := &builder{mapFD: k.block.FD(), slots: k.ring, cpus: rows(k)}
	var err error
	b.off, err = findOffsets(false)
	require.NoError(t, err)
	at, err := k.whoami(b)
	require.NoError(t, err)
	return at
}

// rows is how many there are.
func rows(k *kernel) int {
	n, err := ebpf.PossibleCPU()
	if err != nil {
		panic(err) // open has asked before
	}
	return n
}

// submitsPassedBy are the places of so many of the programs on requests.
func submitsPassedBy(n int) (places []int) {
	for i := range n {
		places = append(places, placeSubmit+i)
	}
	return places
}

const (
	placeEnter  = 0
	placeLeave  = 1
	placeSubmit = 2
)

// nap ends the stint of the calling thread and begins another. A sleep alone may not:
// where it takes long to begin, the time is over when it has begun.
func nap() {
	switches := func() int64 {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
			panic(err) // there is nothing that it could lack
		}
		return u.Nvcsw + u.Nivcsw
	}
	for before := switches(); switches() == before; {
		d := unix.NsecToTimespec(1e6)
		_ = unix.Nanosleep(&d, nil) // or interrupted
	}
}

// quiet waits until no thread of ours is in a stint without the entry. Each ends
// its own now and then.
func quiet(t *testing.T, k *kernel) {
	require.Eventually(t, func() bool { return k.word(atCounter).Load()&hca.Unsettled == 0 }, 10*time.Second, time.Millisecond)
}

// general counts the events since from that say that anything may have changed.
func general(k *kernel, from uint64) (n int) {
	for ; from < k.events.Done(); from++ {
		if ev, _, ok := k.events.At(from); ok && ev.Cause == hca.CauseLost && ev.Range == hca.Whole {
			n++
		}
	}
	return n
}

// In a stint in which the entry is passed by nothing is vouched for. After it
// anything may have changed if a call that takes memory away ended in it, and else
// nothing has.
func TestStint_Counter(t *testing.T) {
	inStints(t, func(t *testing.T, k *kernel, pretend func(...int) func()) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		a := memory(t, 1)
		// Other threads of the runtime call what takes memory away now and then.
		undisturbed := false
		for range 100 {
			quiet(t, k)
			from, before := k.word(atClaim).Load(), k.word(atCounter).Load()
			stop := pretend(placeEnter)
			nap()
			require.NotZero(t, k.word(atCounter).Load()&hca.Unsettled, "this thread runs")
			stop()
			nap()
			quiet(t, k)
			if undisturbed = k.word(atCounter).Load() == before; undisturbed {
				require.Zero(t, general(k, from))
				break
			}
		}
		require.True(t, undisturbed, "a stint without calls changes nothing")
		require.Positive(t, k.word(atBlind).Load())

		from := k.word(atClaim).Load()
		stop := pretend(placeEnter)
		nap()
		require.NoError(t, unix.Madvise(bytesOf(a), unix.MADV_DONTNEED))
		stop()
		nap()
		quiet(t, k)
		require.Positive(t, general(k, from))

		// Nobody sees whether a call ended: at worst.
		from = k.word(atClaim).Load()
		stop = pretend(placeEnter, placeLeave)
		nap()
		stop()
		nap()
		quiet(t, k)
		require.Positive(t, general(k, from))
		require.Zero(t, k.word(atBroken).Load())
	})
}

// A thread whose stint ends inside of a call, and whose entry was passed by, is
// taken for one that may be doing anything, until the call returns.
func TestStint_Inside(t *testing.T) {
	inStints(t, func(t *testing.T, k *kernel, pretend func(...int) func()) {
		a, other := memory(t, 1), memory(t, 1)
		g := newGate(t)
		g.over(t, a)
		ready, begin, done := make(chan struct{}), make(chan struct{}), make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with it
			ready <- struct{}{}
			<-begin
			nap()
			done <- unix.Madvise(bytesOf(a), unix.MADV_DONTNEED)
		}()
		<-ready
		from := k.word(atClaim).Load()
		stop := pretend(placeEnter)
		begin <- struct{}{}
		g.held(t)
		stop()
		quiet(t, k)
		require.True(t, k.busy(other.Addr, other.End()))
		require.Positive(t, general(k, from))
		g.let(t)
		require.NoError(t, <-done)
		require.Eventually(t, func() bool { return !k.busy(other.Addr, other.End()) }, 10*time.Second, time.Millisecond)
	})
}

// A slot whose operation ended unseen does not stay: it is freed when a stint ends
// in which the exit was passed by and the thread stands outside.
func TestStint_ExitMissed(t *testing.T) {
	inStints(t, func(t *testing.T, k *kernel, pretend func(...int) func()) {
		a := memory(t, 1)
		g := newGate(t)
		g.over(t, a)
		done := make(chan error)
		var stop atomic.Bool
		go func() { // the two take one processor from each other
			runtime.LockOSThread() // never unlocked: the thread ends with it
			done <- onOne()
			for !stop.Load() {
			}
		}()
		require.NoError(t, <-done)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with it
			done <- onOne()
			done <- unix.Madvise(bytesOf(a), unix.MADV_DONTNEED)
			for !stop.Load() {
				// No system call, so no exit of one.
			}
		}()
		defer stop.Store(true)
		require.NoError(t, <-done)
		at, owner := slotOfHeld(t, k, g, a, done)

		missExit(k, at, owner)
		end := pretend(placeLeave)
		defer end()
		awaitFree(t, k, at)
	})
}

// onOne keeps the calling thread on one processor, the same for all.
func onOne() error {
	var cpus, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		return err
	}
	for i := range len(cpus) * 64 {
		if cpus.IsSet(i) {
			one.Set(i)
			break
		}
	}
	return unix.SchedSetaffinity(0, &one)
}

// Requests to io_uring that may have been missed leave nothing kept any more, and
// where it is certain that they were not they leave nothing behind.
func TestStint_Uring(t *testing.T) {
	for _, way := range []struct {
		name     string
		passedBy []int
		request  bool
		kept     bool
	}{
		{"Few", submitsPassedBy(missable), true, true},
		{"Many", submitsPassedBy(missable + 1), true, false},
		{"ManyWithoutRequest", submitsPassedBy(missable + 1), false, false},
	} {
		t.Run(way.name, func(t *testing.T) {
			inStints(t, func(t *testing.T, k *kernel, pretend func(...int) func()) {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				u := eventtest.NewUring(t)
				a := memory(t, 1)
				stop := pretend(way.passedBy...)
				nap()
				if way.request {
					u.Start(t, opMadvise, 0, -1, 0, a.Addr, uint32(a.Len), unix.MADV_DONTNEED)
					require.Zero(t, u.End(t))
				}
				stop()
				nap()
				require.Equal(t, way.kept, k.word(atBroken).Load() == 0)
				require.Eventually(t, func() bool { return !k.busy(a.Addr, a.End()) == way.kept }, 10*time.Second, time.Millisecond)
			})
		})
	}
}

// A slot whose operation ended unseen is taken over by the thread's next.
func TestStint_TakenOver(t *testing.T) {
	inStints(t, func(t *testing.T, k *kernel, pretend func(...int) func()) {
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
		at, owner := slotOfHeld(t, k, g, a, done)

		k.op(at).lo.Store(0)
		missExit(k, at, owner)
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
		awaitFree(t, k, at)
	})
}

// slotOfHeld is where the operation on a stands in the table that a thread is held
// in at the gate, and how the kernel numbers the thread. It lets the thread go on,
// which answers on done, and waits until the slot is free.
func slotOfHeld(t *testing.T, k *kernel, g gate, a hca.Range, done <-chan error) (at int, owner uint64) {
	t.Helper()
	g.held(t)
	at = slotOf(k, a)
	require.GreaterOrEqual(t, at, 0)
	owner = k.op(at).owner.Load()
	g.let(t)
	require.NoError(t, <-done)
	require.Eventually(t, func() bool { return k.op(at).owner.Load() == 0 }, 10*time.Second, time.Millisecond)
	return at, owner
}

// missExit gives the owner a slot, as if the exit of its last operation had been
// missed.
func missExit(k *kernel, at int, owner uint64) {
	k.word(atActive).Add(1)
	k.op(at).owner.Store(owner)
}

// awaitFree waits until the slot is free and nothing is under way.
func awaitFree(t *testing.T, k *kernel, at int) {
	t.Helper()
	require.Eventually(t, func() bool { return k.op(at).owner.Load() == 0 && k.word(atActive).Load() == 0 }, 10*time.Second, time.Millisecond)
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

// A thread whose exit was missed and who goes to sleep in a call that takes nothing
// away, as a thread of the Go runtime that has nothing to do, does not leave its slot
// behind until somebody wakes it: it frees it as it enters.
func TestStint_ExitMissedBeforeASleep(t *testing.T) {
	inStints(t, func(t *testing.T, k *kernel, pretend func(...int) func()) {
		a := memory(t, 1)
		g := newGate(t)
		g.over(t, a)
		var pipe [2]int
		require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
		defer unix.Close(pipe[0])
		defer unix.Close(pipe[1])
		done := make(chan error)
		var sleep atomic.Bool
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with it
			done <- unix.Madvise(bytesOf(a), unix.MADV_DONTNEED)
			for !sleep.Load() {
				// No system call, so no exit of one.
			}
			var one [1]byte
			_, err := unix.Read(pipe[0], one[:])
			done <- err
		}()
		at, owner := slotOfHeld(t, k, g, a, done)

		missExit(k, at, owner)
		sleep.Store(true)
		awaitFree(t, k, at)
		_, err := unix.Write(pipe[1], []byte{1})
		require.NoError(t, err)
		require.NoError(t, <-done)
	})
}
