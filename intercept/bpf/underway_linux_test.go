//go:build linux && (amd64 || arm64)

package bpf

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
	"example.com/holdfast/intercept/internal/eventtest"
	"example.com/holdfast/intercept/internal/uffd"
	"example.com/holdfast/internal/childtest"
)

// gate is a userfaultfd of the test's own that nobody reads for now: a thread
// that unmaps or discards memory on it stands still in the kernel.
type gate struct {
	*os.File
	fd int
}

func newGate(t *testing.T) gate {
	fd, err := uffd.Open(uffd.UserModeOnly)
	if err != nil {
		t.Skipf("the test cannot stop a system call in the kernel: userfaultfd: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	require.NoError(t, uffd.Enable(fd, uffd.Features))
	return gate{fd: fd}
}

func (g gate) over(t *testing.T, r hca.Range) {
	require.NoError(t, uffd.Register(g.fd, r.Addr, r.End()))
}

// held waits until a thread stands at the gate.
func (g gate) held(t *testing.T) {
	poll := []unix.PollFd{{Fd: int32(g.fd), Events: unix.POLLIN}}
	for began := time.Now(); ; {
		n, err := unix.Poll(poll, 10_000)
		if errors.Is(err, unix.EINTR) && time.Since(began) < 10*time.Second {
			continue
		}
		require.NoError(t, err)
		require.Equal(t, 1, n, "nobody came to the gate")
		return
	}
}

// let reads one event, and the thread that waits for it goes on.
func (g gate) let(t *testing.T) {
	var msg [32]byte
	_, err := unix.Read(g.fd, msg[:])
	require.NoError(t, err)
	require.NotZero(t, binary.NativeEndian.Uint64(msg[:]))
}

// What is under way is announced before it acts, is known until it returns,
// and leaves all other memory alone.
func TestUnderWay(t *testing.T) {
	for _, way := range []struct {
		name  string
		cause hca.Cause
		do    func(r hca.Range) error
	}{
		{"Madvise", hca.CauseDiscard, func(r hca.Range) error { return unix.Madvise(bytesOf(r), unix.MADV_DONTNEED) }},
		{"Munmap", hca.CauseUnmap, func(r hca.Range) error { return unix.MunmapPtr(pointer(r.Addr), uintptr(r.Len)) }},
	} {
		t.Run(way.name, func(t *testing.T) {
			inChild(t, func(t *testing.T, m *intercept.Monitor) {
				a, other := memory(t, 4), memory(t, 4)
				gone := part(a, 1, 2)
				g := newGate(t)
				g.over(t, a)
				kept(t, m, a)
				f, err := m.Subscribe(nil)
				require.NoError(t, err)
				defer f.Close()
				done := make(chan error, 1)
				go func() { done <- way.do(gone) }()
				g.held(t)

				// The call stands in the kernel. Of a discard not a byte has gone.
				if way.cause == hca.CauseDiscard {
					require.Equal(t, byte(0xa5), peek(gone.Addr), "it had not acted when it was announced")
				}
				settles(t, m.Counter()) // hits go on
				var buf [16]hca.Event
				var events []hca.Event // the runtime's own discards are among them
				for n := f.Next(buf[:]); n > 0; n = f.Next(buf[:]) {
					events = append(events, buf[:n]...)
				}
				require.Contains(t, events, hca.Event{Range: gone, Cause: way.cause})
				require.Equal(t, hca.UnkeptUnsettled, m.Watch(gone).Why)
				require.Equal(t, hca.UnkeptUnsettled, m.Watch(part(a, 2, 2)).Why, "a part of it")
				kept(t, m, other)
				kept(t, m, part(a, 3, 1))
				require.Equal(t, hca.MemUnknown, m.Kind(gone))

				g.let(t)
				require.NoError(t, <-done)
				if way.cause == hca.CauseDiscard {
					kept(t, m, a)
				} else {
					eventtest.NotMapped(t, watch(t, m, gone).Why, gone)
				}
			})
		})
	}
}

// settles insists that the counter settles now: what is under way leaves it
// alone, and what another thread of the runtime announces takes no time.
func settles(t *testing.T, counter *atomic.Uint64) {
	t.Helper()
	require.Eventually(t, func() bool { return counter.Load()&hca.Unsettled == 0 }, 10*time.Second, time.Microsecond)
}

// More threads than one finds slots for: what does not fit counts as an
// operation on everything, until it is over.
func TestUnderWay_Spill(t *testing.T) {
	childtest.Run(t, patience, fastExit, func(t *testing.T) {
		k := startSource(t, Config{})
		defer k.unmap()
		defer k.Stop()
		a, other := memory(t, 1), memory(t, 1)
		g := newGate(t)
		g.over(t, a)
		ready, begin, done := make(chan uint64), make(chan struct{}), make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with it
			ready <- uint64(unix.Gettid())
			<-begin
			done <- unix.Madvise(bytesOf(a), unix.MADV_DONTNEED)
		}()
		<-ready
		// All slots belong to somebody else: as if so many threads stood in
		// the kernel.
		for i := range maxOps {
			k.op(i).owner.CompareAndSwap(0, 1<<40)
		}
		close(begin)
		g.held(t)
		require.Positive(t, k.word(atSpill).Load())
		require.True(t, k.busy(other.Addr, other.End()))
		g.let(t)
		require.NoError(t, <-done)
		// The Go runtime may be at work as well, and finds no slot either.
		require.Eventually(t, func() bool {
			return k.word(atSpill).Load() == 0 && k.word(atActive).Load() == 0 && !k.busy(other.Addr, other.End())
		}, 10*time.Second, time.Millisecond)
		require.Zero(t, k.word(atBroken).Load())
	})
}

// startSource is start without a monitor around it.
func startSource(t *testing.T, cfg Config) *kernel {
	t.Helper()
	require.NoError(t, start(t, cfg).Close()) // skips where there is none
	k, err := open(cfg.withDefaults(), true)
	require.NoError(t, err)
	return k
}

// Many threads announce at once, and a reader misses nothing: as many events
// as calls, each with its own range, or one that says that some were lost.
func TestManyWriters(t *testing.T) {
	childtest.Run(t, patience, fastExit, func(t *testing.T) {
		const threads, calls = 4, 20_000
		k := startSource(t, Config{Ring: 1 << 17})
		defer k.unmap()
		defer k.Stop()
		a := memory(t, threads*16)
		from := k.events.Done()
		var seen [threads * 16]int
		general := 0
		ended := make(chan error, threads)
		for i := range threads {
			go func() {
				for n := range calls {
					if err := unix.Madvise(bytesOf(part(a, i*16+n%16, 1)), unix.MADV_DONTNEED); err != nil {
						ended <- err
						return
					}
				}
				ended <- nil
			}()
		}
		read := func() {
			for end := k.events.Done(); from < end; from++ {
				ev, _, ok := k.events.At(from)
				require.True(t, ok, "position %d", from)
				if ev.Cause == hca.CauseLost {
					general++ // a program was passed by: see TestPreempted
					continue
				}
				if ev.Range.Overlaps(a) {
					require.Equal(t, pageSize, ev.Range.Len)
					seen[(ev.Range.Addr-a.Addr)/pageSize]++
				}
			}
		}
		for left := threads; left > 0; {
			select {
			case err := <-ended:
				require.NoError(t, err)
				left--
			default:
				read()
			}
		}
		settles(t, k.word(atCounter))
		read()
		for i, n := range seen {
			if general == 0 { // else some are missing, or there twice
				require.Equal(t, calls/16, n, "page %d", i)
			}
		}
	})
}

// A feed that falls behind by more than the ring is told so.
func TestOverflow(t *testing.T) {
	childtest.Run(t, patience, fastExit, func(t *testing.T) {
		m := start(t, Config{Ring: 64})
		a := memory(t, 1)
		events := allDuring(t, m, a, func() {
			for range 200 {
				require.NoError(t, unix.Madvise(bytesOf(a), unix.MADV_DONTNEED))
			}
		})
		require.Contains(t, events, hca.Event{Range: hca.Whole, Cause: hca.CauseLost})
		require.Equal(t, discarded(a), during(t, m, a, func() { require.NoError(t, unix.Madvise(bytesOf(a), unix.MADV_DONTNEED)) }))
		require.Positive(t, m.Stats().Lost)
		require.NoError(t, m.Close())
	})
}

// An event that its writer could not keep whole, because the ring went round
// under it, is lost and never silently skipped: see entry.
func TestOvertakenWriter(t *testing.T) {
	k := newBlock(64)
	word := k.word(atClaim)
	write := func(pos uint64, mark uint64) {
		e := k.events.entry(pos)
		e.Addr.Store(pos)
		e.Len.Store(1)
		e.Mark.Store(mark<<8 | uint64(hca.CauseUnmap))
	}
	for pos := range uint64(64) {
		word.Store(pos + 1)
		write(pos, pos+1)
	}
	require.EqualValues(t, 64, k.events.Done())
	// Position 64 is claimed and not yet written: the writer is at work.
	k.word(atCounter).Store(1)
	word.Store(66)
	write(65, 66)
	require.EqualValues(t, 64, k.events.Done(), "not before it is complete")
	// It never will be: a writer from the lap before came in between.
	write(64, 1)
	k.word(atCounter).Store(hca.CounterStep)
	require.EqualValues(t, 66, k.events.Done())
	_, _, ok := k.events.At(64)
	require.False(t, ok)
	ev, _, ok := k.events.At(65)
	require.True(t, ok)
	require.EqualValues(t, 65, ev.Range.Addr)
}

// newBlock is a shared block without a kernel behind it.
func newBlock(slots int) *kernel {
	words := make([]uint64, sharedSize(slots, 1)/8)
	k := &kernel{shared: shared{mem: unsafe.Pointer(unsafe.SliceData(words)), size: sharedSize(slots, 1), ring: slots}, maps: -1}
	k.events.shared = &k.shared
	return k
}
