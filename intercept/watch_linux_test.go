//go:build linux && cgo && (amd64 || arm64 || riscv64 || loong64)

package intercept

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept/internal/eventtest"
	"example.com/holdfast/intercept/internal/uffd"
	"example.com/holdfast/internal/childtest"
	"example.com/holdfast/internal/leaktest"
)

func mappings(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return bytes.Count(b, []byte("\n"))
}

// Watching a range inside a mapping splits nothing: the mapping is watched.
func TestWatch_WholeMapping(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := together(t, 64)
		require.False(t, armed(t, a))
		n := mappings(t)
		watched(t, m, part(a, 20, 2))
		require.Equal(t, n, mappings(t))
		require.True(t, armed(t, a))
		require.Equal(t, hca.MemForeign, m.Kind(a), "known without having been asked for")
	})
}

// What is known costs no system call: it works where ioctl is forbidden.
func TestWatch_KnownAsksNobody(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a, b := together(t, 64), memory(t, 1)
		w := watched(t, m, part(a, 20, 2))
		childtest.Forbid(t, unix.SYS_IOCTL)
		require.Equal(t, hca.UnkeptRefused, m.Watch(b).Why)
		for i := range 64 {
			require.Equal(t, w, m.Watch(part(a, i, 1)))
		}
		require.True(t, m.UnderWay(w.Domains), "a probe that cannot be made proves nothing")
	})
}

func TestWatch_Hole(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 8)
		require.NoError(t, rawMunmap(part(a, 3, 1).Addr, uintptr(pageSize)))
		require.Equal(t, hca.Watch{Kind: hca.MemUnknown, Why: hca.UnkeptNotMapped}, m.Watch(a))
		watched(t, m, part(a, 0, 3))
		eventtest.NotMapped(t, m.Watch(part(a, 3, 1)).Why, part(a, 3, 1))
		// What is mapped into the hole later is not watched, and known not to be.
		mapAt(t, part(a, 3, 1), private, -1)
		require.False(t, armed(t, a))
		require.Equal(t, hca.MemUnknown, m.Kind(a))
		watched(t, m, a)
		require.Equal(t, []hca.Event{unmapEvent(part(a, 3, 1))}, during(t, m, func() {
			require.NoError(t, rawMunmap(part(a, 3, 1).Addr, uintptr(pageSize)))
		}))
		require.Equal(t, hca.MemUnknown, m.Kind(a))
	})
}

// raceWith is another thread that does something once in each round, at moments
// that vary from round to round. One goroutine uses it.
type raceWith struct {
	rounds     int64        // begun
	turn, done atomic.Int64 // rounds begun, and ended by the other thread; turn negative: the end
	wg         sync.WaitGroup
}

func newRace(do func()) *raceWith {
	r := &raceWith{}
	r.wg.Go(func() {
		runtime.LockOSThread()
		for round := int64(1); ; round++ {
			now := r.turn.Load()
			for ; now >= 0 && now < round; now = r.turn.Load() {
				yield()
			}
			if now < 0 {
				return
			}
			for range round % 64 * 16 { // now here, now there
				r.done.Load()
			}
			do()
			r.done.Store(round)
		}
	})
	return r
}

// begin lets the other thread do it, and end waits until it has.
func (r *raceWith) begin() {
	r.rounds++
	r.turn.Store(r.rounds)
}

func (r *raceWith) end() {
	for r.done.Load() < r.rounds {
		yield()
	}
}

func (r *raceWith) stop() {
	r.turn.Store(-1)
	r.wg.Wait()
}

// A hole that opens and closes again while the mapping around it is being
// watched for the first time, so that nobody reports it: what comes into the
// hole is not watched. Whenever Watch says foreign and the checks that it asks
// for hold, every page is watched all the same. How often the race is hit
// depends on the machine: TestWatch_HoleInBetween hits it always.
func TestWatch_HoleRace(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 8)
		hole := part(a, 3, 1)
		runtime.GOMAXPROCS(8) // who spins must not keep the monitor's goroutines from running
		race := newRace(func() {
			rawMunmap(hole.Addr, uintptr(hole.Len))
			if _, err := rawMmap(hole.Addr, uintptr(hole.Len), rw, private|unix.MAP_FIXED_NOREPLACE, -1, 0); err != nil {
				panic(err)
			}
		})
		runtime.LockOSThread()
		claims := 0
		for began := time.Now(); time.Since(began) < 3*time.Second; {
			if claims > 100 && m.Stats().Changed > 20 {
				break
			}
			_, err := rawMmap(a.Addr, uintptr(a.Len), rw, private|unix.MAP_FIXED, -1, 0)
			require.NoError(t, err)
			m.kernel.catchUp()
			g := settle(t, m)
			race.begin()
			w := m.Watch(a)
			race.end()
			if w.Kind == hca.MemForeign && !m.UnderWay(w.Domains) && m.counter.Load() == g {
				claims++
				require.True(t, armed(t, a), "said to be watched throughout, nothing happened since, and it is not")
			}
		}
		race.stop()
		t.Logf("%d rounds, %d times watched throughout, %d times a hole came in between", race.rounds, claims, m.Stats().Changed)
	})
}

// The same at the worst moments: the hole opens between the look-up of the
// mapping and its registration, and closes after that.
func TestWatch_HoleInBetween(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 8)
		hole := part(a, 3, 1)
		times := 1
		m.kernel.between = func(registered bool) {
			switch {
			case times == 0:
			case registered:
				mapAt(t, hole, private, -1)
				times--
			default:
				require.NoError(t, rawMunmap(hole.Addr, uintptr(hole.Len)))
			}
		}
		g := settle(t, m)
		watched(t, m, a)
		require.Equal(t, uint64(1), m.Stats().Changed)
		require.True(t, armed(t, a))
		require.Equal(t, g, settle(t, m), "nobody reports what was not watched yet")

		// It never ends: given up after some tries.
		mapAt(t, a, private, -1)
		settle(t, m)
		times = -1
		eventtest.NotMapped(t, m.Watch(a).Why, a)
		require.False(t, armed(t, a))
	})
}

// A range over mappings on several descriptors names them all, and each probe
// is asked.
func TestWatch_SpansDescriptors(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		const n = 16
		a := memory(t, n)
		for i := 1; i < n; i += 2 { // mappings that cannot merge
			require.NoError(t, unix.Mprotect(unsafe.Slice((*byte)(pointer(part(a, i, 1).Addr)), pageSize), unix.PROT_READ))
		}
		w := watched(t, m, a)
		require.Greater(t, bits.OnesCount32(w.Domains), 1)
		var sum uint32
		for i := range n {
			one := watched(t, m, part(a, i, 1))
			require.Equal(t, 1, bits.OnesCount32(one.Domains))
			sum |= one.Domains
		}
		require.Equal(t, w.Domains, sum)
		require.False(t, m.UnderWay(w.Domains))
		require.True(t, m.UnderWay(1<<31), "there is no such channel")
		// One munmap over all of them is one event for each descriptor.
		require.Len(t, during(t, m, func() { require.NoError(t, rawMunmap(a.Addr, uintptr(a.Len))) }), bits.OnesCount32(sum))
	})
}

// The pieces of a mapping that was split are found on its descriptor, wherever
// they start.
func TestWatch_SplitMapping(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 33)
		w := watched(t, m, a)
		for i := 1; i < 33; i += 2 {
			require.NoError(t, rawMunmap(part(a, i, 1).Addr, uintptr(pageSize)))
		}
		settle(t, m)
		m.kernel.catchUp()
		m.kernel.mu.Lock()
		m.kernel.known.clear() // as if forgotten
		m.kernel.mu.Unlock()
		for i := 0; i < 33; i += 2 {
			require.Equal(t, w, watched(t, m, part(a, i, 1)))
		}
	})
}

// moves gives what a neighbour may do between the look-up of the mapping a
// and its registration, so that one of its own mappings lies across a's old
// bounds. Each answers the neighbour's mapping, which the kernel has as one
// with what is left of a.
func neighbourMoves(t *testing.T, space, a hca.Range) map[string]func() hca.Range {
	fixed := func(r hca.Range) hca.Range { mapAt(t, r, private, -1); return r }
	at := int((a.Addr - space.Addr) / pageSize)
	n := int(a.Len / pageSize)
	return map[string]func() hca.Range{
		"across the end":   func() hca.Range { return fixed(part(space, at+n-2, 4)) },
		"across the start": func() hca.Range { return fixed(part(space, at-2, 4)) },
		"over all of it":   func() hca.Range { return fixed(part(space, at-2, n+4)) },
		"grown at the end": func() hca.Range {
			require.NoError(t, rawMunmap(a.End(), uintptr(2*pageSize)))
			_, err := rawMremap(a.Addr, uintptr(a.Len), uintptr(a.Len+2*pageSize), 0, 0)
			require.NoError(t, err)
			return hca.Range{Addr: a.Addr, Len: a.Len + 2*pageSize}
		},
	}
}

// A neighbour's mapping that came between the look-up of a mapping and its
// registration, across its bounds, is not left split: its owner can move it.
func TestWatch_NeighbourInBetween(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		for name := range neighbourMoves(t, hca.Range{}, hca.Range{}) {
			space := area(t, 16)
			a := part(space, 4, 8)
			mapAt(t, a, private, -1)
			var theirs hca.Range
			m.kernel.between = func(registered bool) {
				if !registered && theirs.Len == 0 {
					theirs = neighbourMoves(t, space, a)[name]()
				}
			}
			watched(t, m, a)
			require.NotZero(t, theirs.Len)
			require.True(t, armed(t, a), name)
			m.kernel.between = nil
			to := area(t, int(theirs.Len/pageSize))
			_, err := rawMremap(theirs.Addr, uintptr(theirs.Len), uintptr(theirs.Len), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, to.Addr)
			require.NoError(t, err, name)
			settle(t, m)
		}
	})
}

// Before Linux 6.11 mappings are found in the list of all, with the same
// answers.
func TestWatch_WithoutQuery(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		space := area(t, 12)
		file := memfd(t, 4)
		mapAt(t, part(space, 1, 2), private, -1)
		mapAt(t, part(space, 4, 2), shared, -1)
		_, err := rawMmap(part(space, 7, 2).Addr, uintptr(2*pageSize), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_FIXED, file, int64(pageSize))
		require.NoError(t, err)
		require.NoError(t, rawMunmap(part(space, 10, 1).Addr, uintptr(pageSize)))
		for i := range 12 {
			at := part(space, i, 1).Addr
			m.kernel.noQuery = false
			was, ok, err := m.kernel.mapping(at)
			require.NoError(t, err)
			if m.kernel.noQuery {
				t.Skip("this kernel has no PROCMAP_QUERY to compare with (Linux 6.11)")
			}
			require.Equal(t, i != 10, ok)
			m.kernel.noQuery = true
			now, still, err := m.kernel.mapping(at)
			require.NoError(t, err)
			require.Equal(t, ok, still)
			require.Equal(t, was, now)
		}
		watched(t, m, part(space, 1, 2))
		eventtest.NotMapped(t, m.Watch(part(space, 10, 1)).Why, part(space, 10, 1))
	})
}

// Neighbours that cannot have been one with the mapping are let be. Of those
// that may have been nobody can tell, and they are watched.
func TestWatch_OtherNeighbours(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		for _, n := range []struct {
			name      string
			flags, fd int
			prot      int // of the neighbours
			watched   bool
		}{
			{"other access", private, -1, unix.PROT_READ, false},
			{"the same part of a file", unix.MAP_SHARED, memfd(t, 1), rw, false},
			{"private memory, written before it touched", private, -1, rw, true},
		} {
			space := area(t, 5)
			left, a, right := part(space, 1, 1), part(space, 2, 1), part(space, 3, 1)
			for _, r := range []hca.Range{left, right, a} {
				mapAt(t, r, n.flags, n.fd)
			}
			for _, r := range []hca.Range{left, right} {
				require.NoError(t, unix.Mprotect(unsafe.Slice((*byte)(pointer(r.Addr)), r.Len), n.prot))
			}
			watched(t, m, a)
			require.True(t, armed(t, a), n.name)
			require.Equal(t, n.watched, armed(t, left), "%s: before it", n.name)
			require.Equal(t, n.watched, armed(t, right), "%s: after it", n.name)
			watched(t, m, right)
		}
	})
}

// A neighbour in between by another thread. How often the race is hit depends on the machine:
// TestWatch_NeighbourInBetween hits it always.
func TestWatch_NeighbourRace(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		runtime.GOMAXPROCS(8) // who spins must not keep the monitor's goroutines from running
		space, to := area(t, 16), area(t, 16)
		a := part(space, 4, 8)
		theirs := part(space, 10, 4) // across the end of a
		race := newRace(func() {
			if _, err := rawMmap(theirs.Addr, uintptr(theirs.Len), rw, private|unix.MAP_FIXED, -1, 0); err != nil {
				panic(err)
			}
		})
		runtime.LockOSThread()
		for began := time.Now(); race.rounds < 20_000 && m.kernel.rejoined < 20 && time.Since(began) < 3*time.Second; {
			for _, r := range []hca.Range{space, to} {
				_, err := rawMmap(r.Addr, uintptr(r.Len), unix.PROT_NONE, shared|unix.MAP_FIXED, -1, 0)
				require.NoError(t, err)
			}
			mapAt(t, a, private, -1)
			m.kernel.catchUp()
			race.begin()
			m.Watch(a)
			race.end()
			_, err := rawMremap(theirs.Addr, uintptr(theirs.Len), uintptr(theirs.Len), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, to.Addr)
			require.NoError(t, err, "round %d: the neighbour's mapping was left cut", race.rounds)
		}
		race.stop()
		t.Logf("%d rounds, cut and made whole again %d times", race.rounds, m.kernel.rejoined)
	})
}

// A range may consist of so many mappings, and of no more.
func TestWatch_ManyMappings(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := area(t, maxMappings+1)
		for i := range maxMappings + 1 {
			_, err := rawMmap(part(a, i, 1).Addr, uintptr(pageSize), unix.PROT_READ|i%2*unix.PROT_WRITE, private|unix.MAP_FIXED, -1, 0)
			require.NoError(t, err)
		}
		require.Equal(t, hca.UnkeptRefused, m.Watch(a).Why)
		watched(t, m, part(a, 1, maxMappings))
	})
}

// A process that is out of descriptors goes on with what is known. Before Linux
// 6.11 it cannot look mappings up.
func TestWatch_OutOfDescriptors(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 1)
		w := watched(t, m, a)
		var others []hca.Range
		for range 20 {
			others = append(others, memory(t, 1))
		}
		m.kernel.noQuery = true
		var was unix.Rlimit
		require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: was.Max}))
		var known, other hca.Watch
		for _, b := range others { // the runtime may close a file of its own in between
			for {
				fd, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 0)
				if err == unix.EMFILE {
					break
				}
				require.NoError(t, err)
				defer unix.Close(fd)
			}
			known, other = m.Watch(a), m.Watch(b)
			if other.Kind == hca.MemUnknown {
				break
			}
		}
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
		require.Equal(t, w, known)
		require.Equal(t, hca.UnkeptRefused, other.Why)
		watched(t, m, others[len(others)-1])
		require.NoError(t, rawMunmap(a.Addr, uintptr(a.Len)))
		settle(t, m)
		eventtest.NotMapped(t, m.Watch(a).Why, a)
	})
}

func TestWatch_ReadOnlySharedFile(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		fd := memfd(t, 2)
		ro, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		defer unix.Close(ro)
		addr, err := rawMmap(0, uintptr(2*pageSize), unix.PROT_READ, unix.MAP_SHARED, ro, 0)
		require.NoError(t, err)
		leaktest.Area(t, addr, 2*pageSize)
		require.Equal(t, hca.Watch{Kind: hca.MemUnknown, Why: hca.UnkeptRefused}, m.Watch(hca.Range{Addr: addr, Len: 2 * pageSize}))
	})
}

// One mapping has one userfaultfd: memory that another one in the process
// watches is unknown until that is closed.
func TestWatch_OtherUserfaultfd(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 2)
		other, err := uffd.Open(uffd.UserModeOnly)
		require.NoError(t, err)
		require.NoError(t, uffd.Enable(other, uffd.FeatureWPAsync|uffd.FeatureWPUnpop))
		require.NoError(t, uffd.Register(other, a.Addr, a.End()))
		require.Equal(t, hca.Watch{Kind: hca.MemUnknown, Why: hca.UnkeptRefused}, m.Watch(a))
		require.NoError(t, unix.Close(other))
		watched(t, m, a)
	})
}

// Memory on which somebody's discard was seen is not kept, until its owner
// says so, or until it is mapped anew.
func TestWatch_ForeignDiscard(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 8)
		one := part(a, 3, 1)
		doubtful := hca.Watch{Kind: hca.MemUnknown, Why: hca.UnkeptDiscardSeen}
		foul := func() { require.NoError(t, rawMadvise(one.Addr, uintptr(one.Len), unix.MADV_DONTNEED)); settle(t, m) }

		watched(t, m, a)
		foul()
		require.Equal(t, doubtful, m.Watch(a))
		require.Equal(t, hca.MemUnknown, m.Kind(one))
		m.kernel.mu.Lock()
		m.kernel.known.clear() // as if the mapping had to be looked up again
		m.kernel.mu.Unlock()
		require.Equal(t, doubtful, m.Watch(a))
		watched(t, m, part(a, 4, 4))
		require.NoError(t, m.Settled(part(a, 4, 4)))
		require.Equal(t, doubtful, m.Watch(a), "another part was settled")
		require.NoError(t, m.Settled(one))
		watched(t, m, a)

		foul()
		require.NoError(t, rawMunmap(a.Addr, uintptr(a.Len)))
		mapAt(t, a, private, -1)
		settle(t, m)
		watched(t, m, a)

		foul()
		mapAt(t, part(a, 2, 3), private, -1)
		settle(t, m)
		watched(t, m, a)

		// Mapped anew, watched and discarded anew.
		mapAt(t, a, private, -1)
		settle(t, m)
		watched(t, m, a)
		foul()
		require.Equal(t, doubtful, m.Watch(a))
		// Moving it does not clear the old place of doubt, nor spread it.
		to := area(t, 8)
		_, err := rawMremap(a.Addr, uintptr(a.Len), uintptr(a.Len), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, to.Addr)
		require.NoError(t, err)
		watched(t, m, to)
	})
}

// The monitor's own discards are settled when they return; what others
// discarded before stays in doubt.
func TestWatch_OwnDiscard(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 8)
		watched(t, m, a)
		require.Len(t, during(t, m, func() { require.NoError(t, m.Advise(part(a, 2, 4), unix.MADV_DONTNEED)) }), 2, "announced and reported")
		require.Zero(t, peek(part(a, 2, 1).Addr))
		watched(t, m, a)

		one := part(a, 3, 1)
		require.NoError(t, rawMadvise(one.Addr, uintptr(one.Len), unix.MADV_DONTNEED))
		require.NoError(t, m.Advise(a, unix.MADV_DONTNEED))
		require.Equal(t, hca.UnkeptDiscardSeen, m.Watch(a).Why)
		watched(t, m, part(a, 0, 3))
		watched(t, m, part(a, 4, 4))
	})
}

// Two announced discards that overlap in place, in every order in which their
// steps can come: none leaves doubt behind, and none takes away what was in
// doubt before. Each is reported by the kernel as well, in between.
func TestWatch_OverlappingDiscards(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		const steps = 3 // announced, done, over
		ranges := [2][2]int{{1, 5}, {4, 5}}
		orders := 0
		for order := range 1 << (2 * steps) { // a bit a step: whose it is
			if bits.OnesCount(uint(order)) != steps {
				continue
			}
			orders++
			for _, before := range []int{-1, 2, 5, 7} { // the page in doubt before: none, the first's, both's, the second's
				a := memory(t, 10)
				watched(t, m, a)
				if before >= 0 {
					one := part(a, before, 1)
					require.NoError(t, rawMadvise(one.Addr, uintptr(one.Len), unix.MADV_DONTNEED))
				}
				var ops [2]Op
				var at [2]int
				for bit := range 2 * steps {
					who := order >> bit & 1
					r := part(a, ranges[who][0], ranges[who][1])
					switch at[who] {
					case 0:
						ops[who] = m.Begin(r, hca.CauseDiscard)
					case 1:
						require.NoError(t, rawMadvise(r.Addr, uintptr(r.Len), unix.MADV_DONTNEED))
						if bit%2 == 0 {
							settle(t, m)
							m.kernel.catchUp() // now, or when somebody looks
						}
					case 2:
						ops[who].End()
					}
					at[who]++
					for i := range ops {
						if at[i] > 0 && at[i] < steps {
							require.Equal(t, hca.UnkeptUnsettled, m.Watch(part(a, ranges[i][0], ranges[i][1])).Why)
						}
					}
				}
				for page := range 10 {
					kind := hca.MemForeign
					if page == before {
						kind = hca.MemUnknown
					}
					require.Equal(t, kind, m.Watch(part(a, page, 1)).Kind, "order %06b, page %d", order, page)
				}
				if before >= 0 {
					require.Equal(t, hca.UnkeptDiscardSeen, m.Watch(a).Why)
					require.NoError(t, m.Settled(a))
				}
				watched(t, m, a)
				require.Empty(t, m.kernel.ours)
				require.NoError(t, rawMunmap(a.Addr, uintptr(a.Len)))
			}
		}
		require.Equal(t, 20, orders)
	})
}

// Many at once, by the monitor's own call.
func TestWatch_OverlappingDiscardsRace(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 16)
		watched(t, m, a)
		doubt := part(a, 9, 1)
		require.NoError(t, rawMadvise(doubt.Addr, uintptr(doubt.Len), unix.MADV_DONTNEED))
		before := m.Stats().Discards
		var wg sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for round := range 300 {
					first := (round*5 + i*3) % 12
					errs[i] = errors.Join(errs[i], m.Advise(part(a, first, 4), unix.MADV_DONTNEED))
				}
			}()
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
		require.Equal(t, before+4*300, m.Stats().Discards, "each was reported")
		require.Equal(t, hca.UnkeptDiscardSeen, m.Watch(doubt).Why)
		watched(t, m, part(a, 0, 9))
		watched(t, m, part(a, 10, 6))
	})
}

// A foreign discard that reaches beyond an announced one is doubt beyond it.
func TestWatch_ForeignAroundOwnDiscard(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		a := memory(t, 8)
		watched(t, m, a)
		op := m.Begin(part(a, 3, 2), hca.CauseDiscard)
		require.NoError(t, rawMadvise(a.Addr, uintptr(a.Len), unix.MADV_DONTNEED))
		op.End()
		watched(t, m, part(a, 3, 2))
		for _, page := range []int{0, 2, 5, 7} {
			require.Equal(t, hca.UnkeptDiscardSeen, m.Watch(part(a, page, 1)).Why)
		}
		// It is over: a discard from now on is somebody's.
		require.NoError(t, rawMadvise(part(a, 4, 1).Addr, uintptr(pageSize), unix.MADV_DONTNEED))
		require.Equal(t, hca.UnkeptDiscardSeen, m.Watch(part(a, 4, 1)).Why)
	})
}

// When the monitor itself falls behind, memory that is watched is in doubt,
// and memory that is mapped later is not.
func TestWatch_AfterLoss(t *testing.T) {
	childtest.Run(t, 30*time.Second, fastExit, func(t *testing.T) {
		m, err := UserfaultConfig(Config{Ring: 64})
		require.NoError(t, err)
		a, b := memory(t, 2), memory(t, 2)
		watched(t, m, a)
		m.kernel.mu.Lock() // the goroutine that catches up cannot
		for range 100 {
			require.NoError(t, rawMadvise(a.Addr, uintptr(a.Len), unix.MADV_DONTNEED))
		}
		settle(t, m) // all of them are in the ring, or were
		m.kernel.mu.Unlock()
		require.Equal(t, hca.UnkeptDiscardSeen, m.Watch(a).Why)
		watched(t, m, b)
		require.NoError(t, m.Settled(a))
		watched(t, m, a)
		require.NoError(t, m.Close())
	})
}

// However many places are discarded, what is remembered of it is bounded, and
// memory elsewhere is kept.
func TestWatch_DoubtIsBounded(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		const n = 3 * maxTaint
		before := m.Stats().Discards
		a, other := memory(t, 2*n), memory(t, 4)
		watched(t, m, a)
		watched(t, m, other)
		for i := range n {
			require.NoError(t, rawMadvise(part(a, 2*i, 1).Addr, uintptr(pageSize), unix.MADV_DONTNEED))
		}
		settle(t, m)
		require.Equal(t, hca.UnkeptDiscardSeen, m.Watch(part(a, 0, 1)).Why)
		require.Equal(t, hca.UnkeptDiscardSeen, m.Watch(part(a, 2*n-2, 1)).Why)
		require.LessOrEqual(t, m.Stats().Taints, maxTaint)
		watched(t, m, other)
		require.Equal(t, before+n, m.Stats().Discards)
		// Memory that is gone is forgotten first.
		require.NoError(t, rawMunmap(a.Addr, uintptr(a.Len)))
		b := memory(t, 2*n)
		watched(t, m, b)
		for i := range maxTaint / 2 {
			require.NoError(t, rawMadvise(part(b, 4*i, 1).Addr, uintptr(pageSize), unix.MADV_DONTNEED))
		}
		settle(t, m)
		watched(t, m, part(b, 2, 1))
		require.NoError(t, rawMunmap(b.Addr, uintptr(b.Len)))
	})
}

// Strict: memory mapped through the monitor is watched like any other, so a
// raw munmap of it is seen.
func TestStrict(t *testing.T) {
	childtest.Run(t, 30*time.Second, fastExit, func(t *testing.T) {
		for _, strict := range []bool{false, true} {
			m, err := UserfaultConfig(Config{Strict: strict})
			require.NoError(t, err)
			b, err := m.Mmap(-1, 0, int(4*pageSize), rw, shared)
			require.NoError(t, err)
			r := hca.RangeOf(b)
			if strict {
				watched(t, m, r)
				require.NoError(t, m.Madvise(b, unix.MADV_DONTNEED))
				watched(t, m, r)
			} else {
				require.Equal(t, hca.MemOwned, m.Watch(r).Kind)
			}
			events := during(t, m, func() { require.NoError(t, rawMunmap(r.Addr, uintptr(r.Len))) })
			if strict {
				require.Equal(t, []hca.Event{unmapEvent(r)}, events)
			} else {
				require.Empty(t, events, "the contract is broken and nobody knows")
			}
			require.NoError(t, m.Close())
		}
	})
}

// Watching is not neutral, and this is how: a neighbour that is mapped later
// does not merge with watched memory, so what spans both cannot be moved.
func TestWatchingChanges_MremapOverNeighbour(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		for _, watch := range []bool{false, true} {
			space := area(t, 4)
			a := part(space, 1, 1)
			mapAt(t, a, private, -1)
			if watch {
				watched(t, m, a)
			}
			mapAt(t, part(space, 2, 1), private, -1)
			to := area(t, 2)
			_, err := rawMremap(a.Addr, uintptr(2*pageSize), uintptr(2*pageSize), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, to.Addr)
			if watch {
				require.ErrorIs(t, err, unix.EFAULT)
			} else {
				require.NoError(t, err)
			}
		}
	})
}

// Private memory that is mapped through the monitor next to private memory of
// others is one mapping with that, and is watched with it. Shared memory never is.
func TestWatchingChanges_OwnedBesideForeign(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		for _, flags := range []int{private, shared} {
			space := area(t, 4)
			foreign, owned := part(space, 1, 1), part(space, 2, 1)
			mapAt(t, foreign, flags, -1)
			_, err := m.Map(owned, rw, flags|unix.MAP_FIXED, -1, 0)
			require.NoError(t, err)
			watched(t, m, foreign)
			require.Equal(t, hca.MemOwned, m.Watch(owned).Kind)
			require.Equal(t, flags == private, armed(t, owned))
			events := during(t, m, func() { require.NoError(t, m.Unmap(owned)) })
			if flags == private {
				require.Len(t, events, 2, "announced, and reported as well")
			} else {
				require.Len(t, events, 1, "announced")
			}
		}
	})
}

// Memory of which pages are missing is gathered into a huge page on demand, and
// by the kernel of itself; not so where it is watched.
func TestWatchingChanges_Collapse(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		const huge = 2 << 20
		if pageSize != 4096 {
			t.Skip("huge pages of another size go with pages of this size")
		}
		for _, c := range []struct{ watch, whole bool }{{false, false}, {true, false}, {true, true}} {
			space := area(t, 2*huge/int(pageSize))
			a := hca.Range{Addr: (space.Addr + huge - 1) &^ (huge - 1), Len: huge}
			_, err := rawMmap(a.Addr, uintptr(a.Len), rw, private|unix.MAP_FIXED, -1, 0)
			require.NoError(t, err)
			require.NoError(t, rawMadvise(a.Addr, uintptr(a.Len), unix.MADV_NOHUGEPAGE)) // small pages first
			for i := 0; i < huge/int(pageSize); i++ {
				if c.whole || i%2 == 0 {
					poke(part(a, i, 1).Addr, 1)
				}
			}
			require.NoError(t, rawMadvise(a.Addr, uintptr(a.Len), unix.MADV_HUGEPAGE))
			if c.watch {
				watched(t, m, a)
			}
			switch err := rawMadvise(a.Addr, uintptr(a.Len), unix.MADV_COLLAPSE); {
			case !c.watch && err != nil:
				t.Skipf("this machine makes no huge pages: %v", err)
			case c.whole:
				if !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.EAGAIN) { // nothing large is free now
					require.NoError(t, err)
				}
			case c.watch:
				require.ErrorIs(t, err, unix.EBUSY)
			}
		}
	})
}

// A page of a file that is read brings its neighbours along, if they are in
// memory; not so where it is watched.
func TestWatchingChanges_FaultAround(t *testing.T) {
	inChild(t, func(t *testing.T, m *Monitor) {
		const n = 16
		fd := memfd(t, n)
		_, err := unix.Pwrite(fd, make([]byte, n*pageSize), 0)
		require.NoError(t, err)
		pagemap, err := os.Open("/proc/self/pagemap")
		require.NoError(t, err)
		defer pagemap.Close()
		for _, watch := range []bool{false, true} {
			// Aligned to as much as is brought along.
			space := area(t, 2*n)
			a := hca.Range{Addr: (space.Addr + n*pageSize - 1) &^ (n*pageSize - 1), Len: n * pageSize}
			_, err := rawMmap(a.Addr, uintptr(a.Len), rw, unix.MAP_SHARED|unix.MAP_FIXED, fd, 0)
			require.NoError(t, err)
			if watch {
				watched(t, m, a)
			}
			require.Zero(t, peek(a.Addr))
			entries := make([]byte, 8*n)
			_, err = pagemap.ReadAt(entries, int64(a.Addr/pageSize*8))
			require.NoError(t, err)
			present := 0
			for i := range n {
				present += int(binary.NativeEndian.Uint64(entries[8*i:]) >> 63)
			}
			if watch {
				require.Equal(t, 1, present)
			} else if present == 1 {
				t.Skip("this kernel brings no neighbours along (fault_around_bytes)")
			}
		}
	})
}
