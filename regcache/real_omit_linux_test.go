package regcache_test

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
	"example.com/holdfast/internal/childtest"
	"example.com/holdfast/regcache"
)

// Each part of the hit protocol is left out in turn, and the kernel shows what
// it is good for: the same loop that gives no wrong byte with all of them gives
// wrong bytes without. protocol_test.go has the same by script, step by step.
//
// Two of them need help to be seen in seconds: the reader thread is between
// reading an event and counting it for less than a microsecond, unless it is
// displaced just then, which one processor for everybody brings about (what the
// reader wakes runs before it); and a hit takes 50 ns but for the probe, so the
// monitor is made slow there, which its contract allows.
func TestOmit_KernelShowsEachPart(t *testing.T) {
	for _, c := range []struct {
		name string
		part uint8
		run  func(t *testing.T, k *kit, ls []*link, until func() bool)
		cpus int           // 0: all
		slow time.Duration // how long the probe waits before it looks
	}{
		{"applied", regcache.OmitApplied, sameThread, 0, 0},
		{"probe", regcache.OmitProbe, twoThreads, 0, 0},
		{"parity", regcache.OmitParity, sameThread, 1, 0},
		{"second_look", regcache.OmitSecondLook, twoThreads, 0, 30 * time.Microsecond},
	} {
		for _, left := range []uint8{0, c.part} {
			name := c.name + "/nothing_left_out"
			if left != 0 {
				name = c.name + "/left_out"
			}
			t.Run(name, func(t *testing.T) {
				childtest.Run(t, time.Minute, childEnv(), func(t *testing.T) {
					if c.cpus == 1 {
						oneProcessor(t)
					}
					k := newKit(t, world{name: c.name, keeps: true, monitor: func() (monitor, error) {
						m, err := intercept.Userfault()
						if err != nil {
							return nil, err
						}
						return slowProbe{m, c.slow}, nil
					}}, regcache.Config{MaxMerge: 1})
					k.cache.Omit(left)
					ls := []*link{k.newLink(t, page), k.newLink(t, page)}
					stop := time.Now().Add(10 * time.Second)
					if left == 0 {
						stop = time.Now().Add(500 * time.Millisecond)
					}
					began := time.Now()
					c.run(t, k, ls, func() bool { return time.Now().After(stop) || enough.Load() })
					s := k.cache.Stats()
					wrong := ls[0].wrong + ls[1].wrong
					t.Logf("%d transfers wrong in %v; %d hits, %d misses, %d events", wrong, time.Since(began).Round(time.Millisecond), s.Hits, s.Misses, s.Events)
					if left == 0 {
						require.Zero(t, wrong, ls[0].first+ls[1].first)
						return
					}
					require.Positive(t, wrong, "the part is not needed, or the test cannot show it")
				})
			})
		}
	}
}

// enough ends a loop that has shown what it had to.
var enough atomic.Bool

// sameThread maps, uses and unmaps at one address, again and again.
func sameThread(t *testing.T, k *kit, ls []*link, until func() bool) {
	g := hca.Range{Addr: place(23), Len: page}
	l := ls[0]
	for !until() {
		_, err := k.mem.mmap(g, readWrite, anonymous|isFree, -1)
		require.NoError(t, err)
		require.NoError(t, l.use(k.cache, g))
		require.NoError(t, l.use(k.cache, g))
		require.NoError(t, k.mem.munmap(g))
		enough.Store(l.wrong >= 20)
	}
}

// twoThreads has a thread that takes the address as soon as it is free.
func twoThreads(t *testing.T, k *kit, ls []*link, until func() bool) {
	g := hca.Range{Addr: place(23), Len: page}
	thief := func(l *link) func() error {
		return func() error {
			for !until() {
				if _, err := k.mem.mmap(g, readWrite, anonymous|isFree, -1); err != nil {
					if errors.Is(err, unix.EEXIST) {
						continue
					}
					return err
				}
				for range 2 {
					if err := l.use(k.cache, g); err != nil {
						return err
					}
				}
				if err := k.mem.munmap(g); err != nil {
					return err
				}
				if l.wrong >= 20 {
					enough.Store(true)
				}
			}
			return nil
		}
	}
	together(t, thief(ls[0]), thief(ls[1]))
}

// slowProbe is a monitor whose probe lets some time pass before it looks. That
// is within its contract: false only if at some moment during the call nothing
// was under way.
type slowProbe struct {
	*intercept.Monitor
	wait time.Duration
}

func (m slowProbe) UnderWay(domains uint32) bool {
	if m.wait > 0 {
		for began := time.Now(); time.Since(began) < m.wait; {
			runtime.Gosched()
		}
	}
	return m.Monitor.UnderWay(domains)
}

// oneProcessor puts every thread of this process on one processor.
func oneProcessor(t *testing.T) {
	t.Helper()
	var all, one unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &all))
	for cpu := range 1024 {
		if all.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	for _, tid := range threads(t) {
		err := unix.SchedSetaffinity(tid, &one)
		if !errors.Is(err, unix.ESRCH) { // it has ended
			require.NoError(t, err)
		}
	}
}
