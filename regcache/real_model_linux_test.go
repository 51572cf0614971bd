package regcache_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"example.com/holdfast/hca"
	"example.com/holdfast/regcache"
)

// Random programs against a plain model. A program maps, writes, moves, throws
// away and unmaps memory, and gets, uses and releases registrations of it in all
// the ways that a cache has; up to three run at once, each on address space of
// its own beside that of the others, with the same caches. The model is what a
// program knows by itself: which pages it has mapped and which bytes are in them.
// After each step every adapter has to have seen and written just these.
//
// The steps are in real_model_steps_linux_test.go, the worlds that they are run
// in and what a run is in real_model_worlds_linux_test.go, and how one that fails
// becomes a Go test in real_model_print_linux_test.go.
//
// HOLDFAST_MODEL_TIME (a duration) makes it go on that long in each world.

const (
	modelVar   = "HOLDFAST_MODEL_TIME"
	modelPages = 24
	breakPages = 8
)

func TestModel_RealMemory(t *testing.T) {
	long := os.Getenv(modelVar)
	limit := 90 * time.Second // a failing one is made shorter for 20 s
	if d, err := time.ParseDuration(long); err == nil {
		limit += d
	}
	inWorlds(t, limit, nil, modelWorlds, regcache.Config{}, func(t *testing.T, k *kit) {
		m := newModel(t, k)
		rapidChecks(t, underRace(rounds(20), 2))
		began := time.Now()
		m.check(t)
		if d, err := time.ParseDuration(long); err == nil {
			for time.Since(began) < d && !t.Failed() {
				m.check(t)
			}
		}
		t.Logf("%s: %s, in %v", k.name, m, time.Since(began).Round(time.Millisecond))
	})
}

// Every kind of step has to do something now and then: one that never finds
// what it needs would test nothing.
func TestModel_EveryStepDoesSomething(t *testing.T) {
	inWorlds(t, 90*time.Second, nil, []world{mixed}, regcache.Config{}, func(t *testing.T, k *kit) {
		m := newModel(t, k)
		rapidChecks(t, 50)
		missing := func() (names []string) {
			for kind := opNothing + 1; kind < opKinds; kind++ {
				if m.done[kind].Load() == 0 {
					names = append(names, opNames[kind])
				}
			}
			return names
		}
		for m.check(t); len(missing()) > 0; m.check(t) {
			require.Less(t, m.runs.Load(), uint64(2000), "never did anything: %v", missing())
		}
		for kind := opNothing + 1; kind < opKinds; kind++ {
			t.Logf("%-14s %d", opNames[kind], m.done[kind].Load())
		}
	})
}

// TestModel_Fails shows that the model finds what a cache without interception
// does wrong.
func TestModel_Fails(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{trusting}, regcache.Config{}, func(t *testing.T, k *kit) {
		m := newModel(t, k)
		found := 0
		rapid.Check(t, func(t *rapid.T) {
			if err := m.try(drawRun(t)); err != nil {
				if !wrongBytes(err) {
					t.Fatalf("%v", err)
				}
				found++
			}
		})
		t.Logf("%d of %d programs went wrong", found, m.runs.Load())
		require.Greater(t, found, int(m.runs.Load())/3)
	})
}

// wrongBytes reports whether this is how a stale registration shows.
func wrongBytes(err error) bool {
	for _, s := range []string{"adapter", "left there", "is not mapped throughout"} {
		if strings.Contains(err.Error(), s) {
			return true
		}
	}
	return false
}

// rapidChecks sets how many programs a check draws. rapid makes none of them
// shorter: see proof_model_shrink_test.go.
func rapidChecks(t *testing.T, n int) {
	for name, value := range map[string]string{"rapid.nofailfile": "true", "rapid.checks": fmt.Sprint(n), "rapid.shrinktime": "0s"} {
		require.NoError(t, flag.Set(name, value))
	}
}

// model runs programs in a kit and counts what they did.
type model struct {
	k      *kit
	stacks []stack

	runs, steps, hits, registrations, invalidations atomic.Uint64
	refused                                         atomic.Uint64 // moves that the kernel would not make
	closed                                          atomic.Uint64 // caches, in the middle of programs
	done                                            [opKinds]atomic.Uint64
}

func newModel(t *testing.T, k *kit) *model {
	m := &model{k: k}
	if k.several == nil {
		m.stacks = []stack{{back: k.back, adapters: []adapter{{k.a, k.world.backend != nil}}}}
	} else {
		m.stacks = k.several(t, k)
	}
	return m
}

func (m *model) String() string {
	return fmt.Sprintf("%d programs, %d steps, %d hits, %d registrations, %d invalidations, %d moves refused, %d caches closed midway",
		m.runs.Load(), m.steps.Load(), m.hits.Load(), m.registrations.Load(), m.invalidations.Load(), m.refused.Load(), m.closed.Load())
}

// run is a program as data: the settings of its caches, and the steps of each
// thread. Its zeros are the cache's defaults.
type run struct {
	caches  int
	regions int
	bytes   uint64
	merge   uint64
	sweep   time.Duration
	threads [][]op
}

func drawRun(t *rapid.T) run {
	r := run{
		caches:  rapid.IntRange(1, 3).Draw(t, "caches"),
		regions: rapid.SampledFrom([]int{0, 2, 5, 40}).Draw(t, "regions"),
		bytes:   rapid.SampledFrom([]uint64{0, 0, 12 * page, 100 * page}).Draw(t, "bytes"),
		merge:   rapid.SampledFrom([]uint64{0, 1, 16 * page}).Draw(t, "merge"),
		sweep:   rapid.SampledFrom([]time.Duration{0, -1, time.Millisecond}).Draw(t, "sweep"),
	}
	threads := rapid.IntRange(1, 3).Draw(t, "threads")
	length := []int{8, 32, 100, 250}[regcache.DrawBits(t, 2)]
	for range threads {
		r.threads = append(r.threads, rapid.SliceOfN(rapid.Custom(drawOp), length, length).Draw(t, "steps"))
	}
	return r
}

// check runs random programs. One that fails is made shorter and printed as a
// Go test.
func (m *model) check(t *testing.T) {
	var failed *run
	var why error
	defer func() {
		if failed != nil {
			t.Logf("as a Go test:\n\n%s", m.shrink(*failed, why, "TestModelFound"))
		}
	}()
	rapid.Check(t, func(t *rapid.T) {
		r := drawRun(t)
		if err := m.try(r); err != nil {
			failed, why = &r, err
			t.Fatalf("%v", err)
		}
	})
}

// scope is what a run needs of a test: it collects what went wrong, and cleans
// up.
type scope struct {
	mu       sync.Mutex
	errs     []error // guarded by mu
	cleanups []func()
}

func (s *scope) Errorf(format string, args ...any) { s.add(fmt.Errorf(format, args...)) }
func (s *scope) FailNow()                          { panic(s) }
func (s *scope) Helper()                           {}
func (s *scope) Cleanup(f func())                  { s.cleanups = append(s.cleanups, f) }

func (s *scope) add(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.errs = append(s.errs, err)
	}
}

// guard runs f, for which a fault of memory is a panic, and any panic an error.
func (s *scope) guard(f func() error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil && p != any(s) {
			s.add(fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
	}()
	s.add(f())
}

// slot is where a cache stands that any thread may close, and put another in
// its place.
type slot struct {
	stack *stack
	cfg   regcache.Config
	cache atomic.Pointer[regcache.Cache]
}

// renew puts a new cache into the slot.
func (s *slot) renew() error {
	c, err := regcache.New(s.stack.back, s.cfg)
	if err == nil {
		s.cache.Store(c)
	}
	return err
}

// try runs a program and says what went wrong.
func (m *model) try(r run) error {
	k := m.k
	cfg := regcache.Config{MaxRegions: r.regions, MaxBytes: r.bytes, MaxMerge: r.merge, SweepEvery: r.sweep}
	if k.mon != nil {
		cfg.Monitor = k.mon
	}
	slots := make([]*slot, max(r.caches, 1))
	for i := range slots {
		slots[i] = &slot{stack: &m.stacks[i%len(m.stacks)], cfg: cfg}
		if err := slots[i].renew(); err != nil {
			return err
		}
	}
	m.runs.Add(1)
	s := &scope{}
	// A run takes milliseconds. The child's hard limit ends one that hangs;
	// before that it has to be known which one it was.
	hangs := time.AfterFunc(30*time.Second, func() {
		fmt.Fprintf(os.Stderr, "a program does not end:\n%s\n", r.print("TestModelHangs", k.name, "It did not end within 30 s."))
	})
	s.guard(func() error {
		programs := make([]*program, len(r.threads))
		for i := range programs {
			programs[i] = m.newProgram(s, i, slots, len(r.threads) > 1)
		}
		var wg sync.WaitGroup
		for i, p := range programs {
			wg.Go(func() {
				s.guard(func() error { return p.run(r.threads[i]) })
				s.guard(p.end)
			})
		}
		wg.Wait()
		return nil
	})
	hangs.Stop()
	for _, f := range s.cleanups {
		s.guard(func() error { f(); return nil })
	}
	for _, slot := range slots {
		s.add(m.closeCache(slot.cache.Load()))
	}
	for _, stack := range m.stacks {
		if twice := stack.back.twice(); twice != 0 {
			s.add(fmt.Errorf("%d registrations were dropped twice", twice))
		}
		if live := stack.back.live(); live != 0 {
			s.add(fmt.Errorf("%d registrations are left", live))
		}
	}
	return errors.Join(s.errs...)
}

// closeCache closes a cache that must have nothing left then.
func (m *model) closeCache(c *regcache.Cache) error {
	if err := c.Close(); err != nil {
		return err
	}
	s := c.Stats()
	m.hits.Add(s.Hits)
	m.registrations.Add(s.Registrations)
	m.invalidations.Add(s.Invalidations)
	if s.Registered != 0 || s.Registrations != s.Deregistrations || s.BytesPinned != 0 || s.BytesDead != 0 || s.DeregisterErrors != 0 {
		return fmt.Errorf("after Close: %+v", s)
	}
	return nil
}

// newProgram makes the program of the i-th thread. The first has the program
// break, of which a process has one.
func (m *model) newProgram(s *scope, i int, slots []*slot, crowd bool) *program {
	p := &program{m: m, k: m.k, slots: slots, crowd: crowd, links: map[adapter]*link{}, ends: make([]end, len(slots))}
	p.base = place(30) + uint64(i)*modelPages*page
	p.bytes = make([]byte, modelPages*page)
	for _, stack := range m.stacks {
		for _, a := range stack.adapters {
			if p.links[a] == nil {
				p.links[a] = m.k.newLinkFrom(s, a.dev, 70<<10)
			}
		}
	}
	if i == 0 {
		p.brk.start(s)
	}
	return p
}

// programBreak is memory that brk(2) gives and takes.
type programBreak struct {
	was, base uint64
	pages     int // there now
	bytes     [breakPages * page]byte
	mine      bool // nobody else has moved it
}

func brk(to uint64) uint64 {
	got, _, _ := unix.Syscall(unix.SYS_BRK, uintptr(to), 0, 0)
	return uint64(got)
}

func (b *programBreak) start(s *scope) {
	b.was = brk(0)
	b.base = hca.Range{Addr: b.was, Len: page}.Pages(page).End() // its first page may be the C library's
	b.mine = true
	s.Cleanup(func() { // the links, and what runs on them, have ended
		if b.ours() {
			brk(b.was)
		}
	})
}

// at is where the break is when n pages are there.
func (b *programBreak) at(n int) uint64 {
	if n == 0 {
		return b.was
	}
	return b.base + uint64(n)*page
}

// ours reports whether the break is where the program left it.
func (b *programBreak) ours() bool {
	b.mine = b.mine && brk(0) == b.at(b.pages)
	return b.mine
}

// move puts the break to where n pages are there, by a raw system call.
func (b *programBreak) move(n int) error {
	if got := brk(b.at(n)); got != b.at(n) {
		return fmt.Errorf("brk(%#x) = %#x", b.at(n), got)
	}
	if n > b.pages {
		clear(b.bytes[b.pages*page : n*page])
	}
	b.pages = n
	return nil
}
