package regcache

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// Faults by plan. A backend numbers its calls, and the plan says what becomes of
// which: it fails, it takes longer than the next step of the program, it takes
// longer than the whole program, or it takes long and then fails. Every scenario
// below is run with every single fault at every call that it makes, and with
// random pairs. The runs are in a bubble (testing/synctest), where "nothing more
// happens" can be waited for, so what a test waits for is an event and not a
// time; and a goroutine that is left over fails the test.
//
// What must hold whatever the plan:
//   - while a call is held, nobody holds the cache's lock and hits go on (I4, I8);
//   - a Get fails only with the error that was injected, and if that says that
//     memory or keys ran out, only if nothing was left to give back (I7);
//   - a failing registration leaves nothing behind, nor its neighbours (I10);
//   - afterwards all is as before (I13): counts are exact, what is registered is
//     what Stats says, nothing was dropped twice or while it was held, a miss is
//     a miss and a hit a hit, and Close works (I12).

type fault struct {
	err  error
	hold hold
}

type hold uint8

const (
	goOn  hold = iota
	delay      // until the next step of the program has come as far as it can
	block      // until the program is over
)

func (f fault) String() string {
	s := [...]string{"", "delay", "block"}[f.hold]
	if f.err != nil {
		s += fmt.Sprintf(" fail(%v)", f.err)
	}
	return s
}

var errInjected = errors.New("injected")

// faultsOf are the single faults of a call.
func faultsOf() []fault {
	return []fault{
		{err: errInjected}, {err: hca.ErrNoMemory}, {err: hca.ErrNoKeys}, {err: hca.ErrBadAddress}, {err: hca.ErrAccess},
		{hold: delay}, {hold: block}, {err: errInjected, hold: delay}, {err: errInjected, hold: block}, {err: hca.ErrNoKeys, hold: delay},
	}
}

// faultRun is one run of a scenario.
type faultRun struct {
	t    *testing.T
	c    *Cache
	b    *nopBackend
	mon  *scriptMonitor
	plan map[int]fault

	mu       sync.Mutex
	calls    int                   // guarded by mu
	held     map[hold][]chan error // guarded by mu: calls that wait
	injected []error               // guarded by mu
	leaked   int                   // guarded by mu: deregistrations that were made to fail
	hopeful  map[uint64]bool       // guarded by mu: by address, "ran out" was the answer while there was something to give back
	inUse    map[*hca.MR]int       // guarded by mu
	exported map[*hca.MR]bool      // guarded by mu: may go while it is held
	early    int                   // guarded by mu: deregistered while held
	pending  map[string]bool       // guarded by mu: steps that have not returned
	got      map[string]*Region    // guarded by mu
	errs     map[string]error      // guarded by mu
	asked    map[string]hca.Range  // guarded by mu
	crowded  bool                  // several Gets at once take from each other

	anchor *Region // held all the time
	lists  []*List // guarded by mu
}

// call is what becomes of the next call, a Register if g is not nil.
func (f *faultRun) call(g *hca.Range, keys int) error {
	f.mu.Lock()
	f.calls++
	x := f.plan[f.calls]
	f.mu.Unlock()
	if x.hold != goOn {
		ch := make(chan error)
		f.mu.Lock()
		f.held[x.hold] = append(f.held[x.hold], ch)
		f.mu.Unlock()
		<-ch
	}
	if g == nil {
		if x.err != nil {
			f.mu.Lock()
			f.injected = append(f.injected, x.err)
			f.leaked++
			f.mu.Unlock()
		}
		return x.err
	}
	f.c.mu.Lock()
	hopeful := f.c.usage.dying > 0
	for _, r := range f.c.index.all(nil) {
		hopeful = hopeful || r.state.Load()&stRefs == 0
	}
	f.c.mu.Unlock()
	err := x.err
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.injected = append(f.injected, err)
	} else if live, _, _ := f.b.counts(); keys > 0 && live >= keys {
		err = fmt.Errorf("all %d are in use: %w", keys, hca.ErrNoKeys)
	}
	f.hopeful[g.Addr] = hopeful && ranOut(err)
	return err
}

func ranOut(err error) bool { return errors.Is(err, hca.ErrNoKeys) || errors.Is(err, hca.ErrNoMemory) }

// do starts a step of the program and waits until it has come as far as it can.
// Then calls that were held before it go on.
func (f *faultRun) do(name string, step func()) {
	f.start(name, step)
	f.await()
}

func (f *faultRun) start(name string, step func()) {
	f.mu.Lock()
	require.False(f.t, f.pending[name], "%s is under way", name)
	f.pending[name] = true
	f.mu.Unlock()
	go func() {
		step()
		f.mu.Lock()
		delete(f.pending, name)
		f.mu.Unlock()
	}()
}

// await waits until nothing more happens, checks that what is held holds up
// nobody else, and lets the delayed calls go on.
func (f *faultRun) await() {
	synctest.Wait()
	f.mu.Lock()
	waiting := f.held[delay]
	any := len(waiting)+len(f.held[block]) > 0
	f.held[delay] = nil
	f.mu.Unlock()
	if any && f.anchor != nil {
		require.True(f.t, f.c.mu.TryLock(), "somebody holds the lock while the backend works")
		f.c.mu.Unlock()
		r, err := f.c.Get(f.anchor.Range(), 0)
		require.NoError(f.t, err)
		require.Same(f.t, f.anchor, r)
		r.Release()
	}
	for _, ch := range waiting {
		close(ch)
	}
	if len(waiting) > 0 {
		synctest.Wait()
	}
}

func (f *faultRun) letAllGo() {
	f.mu.Lock()
	clear(f.plan)
	waiting := slices.Concat(f.held[delay], f.held[block])
	clear(f.held)
	f.mu.Unlock()
	for _, ch := range waiting {
		close(ch)
	}
	synctest.Wait()
}

func (f *faultRun) keep(name string, g hca.Range, a hca.Access, r *Region, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs[name] = err
	if err != nil {
		return
	}
	if !r.Range().Contains(g) || !r.Access().Has(a) || !f.b.isLive(r.cold.mr) {
		f.early++
	}
	f.inUse[r.cold.mr]++
	f.got[name] = r
}

func (b *nopBackend) isLive(mr *hca.MR) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.live[mr]
}

// The steps of a scenario. get and release go by name; a Get that is held or
// failed has nothing to release.
func (f *faultRun) startGet(name string, g hca.Range, a hca.Access) {
	f.mu.Lock()
	f.asked[name] = g
	f.mu.Unlock()
	f.start(name, func() {
		r, err := f.c.Get(g, a)
		f.keep(name, g, a, r, err)
	})
}

func (f *faultRun) get(name string, g hca.Range, a hca.Access) {
	f.startGet(name, g, a)
	f.await()
}

func (f *faultRun) release(names ...string) {
	for _, name := range names {
		f.mu.Lock()
		r := f.got[name]
		delete(f.got, name)
		if r != nil {
			f.inUse[r.cold.mr]--
		}
		f.mu.Unlock()
		if r != nil {
			f.do("release "+name, r.Release)
		}
	}
}

func (f *faultRun) use(name string, g hca.Range, a hca.Access) {
	f.get(name, g, a)
	f.release(name)
}

func (f *faultRun) event(g hca.Range) { f.do(fmt.Sprintf("event %v", g), func() { f.mon.event(g) }) }

func (f *faultRun) close() {
	f.do("close", func() {
		err := f.c.Close()
		f.mu.Lock()
		f.errs["close"] = err
		f.mu.Unlock()
	})
}

// scenario is a program for one cache.
type scenario struct {
	name string
	cfg  Config
	kind hca.MemKind
	keys int // that the backend has; 0: enough
	max  uint64
	run  func(f *faultRun)
}

func scenarios() []scenario {
	n := func(i int) string { return fmt.Sprint("g", i) }
	return []scenario{
		{name: "miss", run: func(f *faultRun) { f.use("a", at(0, 2), hca.LocalWrite) }},
		{name: "miss of owned memory", kind: hca.MemOwned, run: func(f *faultRun) { f.use("a", at(0, 2), 0); f.use("b", at(0, 2), 0) }},
		{name: "hit", run: func(f *faultRun) {
			f.get("a", at(0, 4), 0)
			f.get("b", at(1, 1), 0)
			f.release("a", "b")
			f.use("c", at(3, 1), 0)
		}},
		{name: "joined miss", run: func(f *faultRun) {
			for i := range 4 {
				f.startGet(n(i), at(0, 1), 0)
			}
			f.await()
			f.use("wider", at(0, 1), hca.LocalWrite)
			f.release(n(0), n(1), n(2), n(3))
		}},
		{name: "joined while touched", run: func(f *faultRun) {
			f.startGet("a", at(0, 2), 0)
			f.startGet("b", at(0, 2), 0)
			f.await()
			f.event(at(1, 1))
			f.startGet("c", at(0, 2), hca.LocalWrite)
			f.await()
			f.release("a", "b", "c")
		}},
		{name: "eviction by count", cfg: Config{MaxRegions: 3}, run: func(f *faultRun) {
			for i := range 5 {
				f.use(n(i), at(uint64(i*3), 1), 0)
			}
			f.use("again", at(0, 1), 0)
		}},
		{name: "eviction by bytes", cfg: Config{MaxBytes: 8 * pg}, run: func(f *faultRun) {
			f.use("a", at(0, 3), 0)
			f.use("b", at(10, 4), 0)
			f.use("c", at(20, 5), 0)
			f.use("too large", at(30, 9), 0)
			f.use("d", at(0, 1), 0)
		}},
		{name: "everything in use", cfg: Config{MaxRegions: 2}, run: func(f *faultRun) {
			f.get("a", at(0, 1), 0)
			f.get("b", at(3, 1), 0)
			f.get("c", at(6, 1), 0)
			f.release("a", "c", "b")
			f.use("d", at(9, 1), 0)
		}},
		{name: "idle goes away", run: func(f *faultRun) {
			f.use("a", at(0, 4), 0)
			f.use("b", at(10, 1), 0)
			f.event(at(2, 1))
			f.use("c", at(0, 4), 0)
			f.event(at(0, 20))
			f.use("d", at(10, 1), 0)
		}},
		{name: "held goes away", run: func(f *faultRun) {
			f.get("a", at(0, 4), 0)
			f.get("b", at(1, 1), 0)
			f.event(at(2, 1))
			f.get("c", at(0, 4), 0)
			f.release("a")
			f.event(at(0, 1))
			f.release("b", "c")
		}},
		{name: "everything may have gone", run: func(f *faultRun) {
			f.use("a", at(0, 1), 0)
			f.get("b", at(3, 1), 0)
			f.do("lost", func() {
				f.mon.mu.Lock()
				f.mon.events = append(f.mon.events, hca.Event{Range: at(0, 100), Cause: hca.CauseUnmap})
				f.mon.mu.Unlock()
				f.mon.counter.Add(hca.CounterStep)
				f.c.wake()
			})
			f.use("c", at(0, 1), 0)
			f.release("b")
		}},
		{name: "touched while registering", run: func(f *faultRun) {
			touches := 2
			f.mon.onWatch = func(g hca.Range) {
				if touches--; touches >= 0 {
					f.mon.event(g)
				}
			}
			f.use("a", at(0, 2), 0)
			f.use("b", at(0, 2), 0)
		}},
		{name: "events under way", run: func(f *faultRun) {
			f.use("a", at(0, 1), 0)
			f.mon.underWay.Store(true)
			anchor := f.anchor
			f.anchor = nil // the probe says no for it as well
			f.use("b", at(0, 1), 0)
			f.use("c", at(3, 1), 0)
			f.mon.underWay.Store(false)
			f.anchor = anchor
			f.use("d", at(3, 1), 0)
		}},
		{name: "unknown memory", kind: hca.MemUnknown, run: func(f *faultRun) {
			f.anchor = nil
			f.get("a", at(0, 1), 0)
			f.get("b", at(0, 1), 0)
			f.release("b", "a")
		}},
		{name: "wider access", run: func(f *faultRun) {
			f.use("a", at(0, 2), hca.RemoteRead)
			f.use("b", at(0, 2), hca.LocalWrite)
			f.use("c", at(0, 2), hca.RemoteRead)
			f.use("d", at(0, 1), hca.LocalWrite|hca.RemoteWrite)
		}},
		{name: "wider access in use", run: func(f *faultRun) {
			f.get("a", at(0, 2), hca.RemoteRead)
			f.get("b", at(0, 2), hca.LocalWrite)
			f.release("a")
			f.get("c", at(0, 3), hca.LocalWrite|hca.RemoteAtomic)
			f.release("c", "b")
		}},
		{name: "neighbours merge", run: func(f *faultRun) {
			for i := range mergeRun {
				f.use(n(i), at(uint64(i), 1), 0)
			}
			f.use("all", at(0, mergeRun), 0)
		}},
		{name: "out of keys", keys: 3, run: func(f *faultRun) {
			for i := range 4 {
				f.use(n(i), at(uint64(i*3), 1), 0)
			}
			f.get("x", at(100, 1), 0)
			f.get("y", at(103, 1), 0)
			f.get("z", at(106, 1), 0) // the anchor, x and y have all
			f.release("x", "y", "z")
		}},
		{name: "out of keys with dead ones", keys: 2, run: func(f *faultRun) {
			f.use("a", at(0, 1), 0)
			f.event(at(0, 1))
			f.get("b", at(3, 1), 0)
			f.startGet("c", at(6, 1), 0)
			f.event(at(3, 1))
			f.release("b")
			f.await()
			f.release("c")
		}},
		{name: "what the owner asks", run: func(f *faultRun) {
			for i := range 4 {
				f.use(n(i), at(uint64(i*3), 1), 0)
			}
			f.get("held", at(100, 2), 0)
			f.do("trim", func() { f.c.Trim(2 * pg) })
			f.do("invalidate", func() { f.c.Invalidate(at(9, 100)) })
			f.do("flush", func() { f.c.Flush() })
			f.release("held")
		}},
		{name: "a list", max: 2 * pg, cfg: Config{MaxMerge: 1}, run: func(f *faultRun) {
			for _, parallel := range []int{1, 3} {
				name := fmt.Sprint("list", parallel)
				f.do(name, func() {
					l, err := f.c.GetList(at(0, 5), 0, ListConfig{Parallel: parallel})
					f.mu.Lock()
					defer f.mu.Unlock()
					if f.errs[name] = err; err == nil {
						f.lists = append(f.lists, l)
					}
				})
			}
		}},
		{name: "close", run: func(f *faultRun) {
			f.get("a", at(0, 1), 0)
			f.use("b", at(3, 1), 0)
			f.close() // the anchor is in use
			f.release("a")
			f.use("c", at(0, 1), 0)
			f.anchor.Release()
			f.anchor = nil
			f.close()
			f.use("d", at(0, 1), 0)
		}},
		{name: "exported and gone", run: func(f *faultRun) {
			f.get("a", at(0, 2), 0)
			var x *Export
			f.do("export", func() {
				f.mu.Lock()
				r := f.got["a"]
				f.mu.Unlock()
				if r == nil {
					return
				}
				e, err := r.Export()
				f.mu.Lock()
				defer f.mu.Unlock()
				if x = e; err == nil {
					f.exported[r.cold.mr] = true
				}
			})
			f.event(at(1, 1))
			f.get("b", at(0, 2), 0)
			f.release("a")
			f.release("b")
			if x != nil {
				f.do("end export", x.Close)
			}
		}},
		{name: "posted", run: func(f *faultRun) {
			q, err := f.c.NewQueue(QueueConfig{Workers: 2})
			require.NoError(f.t, err)
			poll := func() {
				var out [8]Done
				for _, d := range out[:q.Poll(out[:])] {
					f.keep(n(int(d.ID)), at(d.ID%100, 1), 0, d.Region, d.Err)
				}
			}
			f.do("post", func() {
				var last Ticket
				for _, id := range []uint64{0, 4, 100, 8, 12} {
					if last, err = q.Post(id, at(id%100, 1), 0); err != nil {
						f.t.Error(err)
					}
				}
				q.Cancel(last)
			})
			f.do("poll", poll)
			f.release(n(0), n(4), n(100))
			f.event(at(0, 1))
			f.do("close queue", func() {
				if err := q.Close(); err != nil {
					f.t.Error(err)
				}
			})
			f.release(n(8), n(12))
		}},
		{name: "all at once", cfg: Config{MaxRegions: 4}, run: func(f *faultRun) {
			f.crowded = true
			for i := range 12 {
				f.startGet(n(i), at(uint64(i%5), 1+uint64(i%3)), hca.Access(i%2))
			}
			f.start("e1", func() { f.mon.event(at(1, 1)) })
			f.start("e2", func() { f.mon.event(at(3, 1)) })
			f.await()
			for i := range 12 {
				f.release(n(i))
			}
		}},
	}
}

// runFaults runs the scenario under the plan, checks all that must hold, and says
// how many calls the backend got.
func runFaults(t *testing.T, s scenario, plan map[int]fault) (calls int) {
	synctest.Test(t, func(t *testing.T) {
		f := &faultRun{
			t: t, b: &nopBackend{info: BackendInfo{MaxLen: s.max}}, mon: &scriptMonitor{kind: s.kind}, plan: map[int]fault{},
			held: map[hold][]chan error{}, inUse: map[*hca.MR]int{}, exported: map[*hca.MR]bool{}, hopeful: map[uint64]bool{}, pending: map[string]bool{}, got: map[string]*Region{}, errs: map[string]error{}, asked: map[string]hca.Range{},
		}
		if s.kind == hca.MemUnknown && s.name != "unknown memory" {
			f.mon.kind = hca.MemForeign
		}
		f.b.onRegister = func(g hca.Range, _ hca.Access) error { return f.call(&g, s.keys) }
		f.b.onDeregister = func(mr *hca.MR) error {
			f.mu.Lock()
			if f.inUse[mr] != 0 && !f.exported[mr] {
				f.early++
			}
			f.mu.Unlock()
			return f.call(nil, 0)
		}
		cfg := s.cfg
		cfg.Monitor, cfg.SweepEvery = f.mon, -1
		if cfg.MaxBytes == 0 {
			cfg.MaxBytes = 1 << 30
		}
		c, err := New(f.b, cfg)
		require.NoError(t, err)
		f.c = c
		f.anchor = mustGet(t, c, at(5000, 1), 0)
		anchor := f.anchor
		f.mu.Lock()
		f.calls = 0
		maps.Copy(f.plan, plan)
		f.mu.Unlock()

		s.run(f)
		f.letAllGo()
		f.mu.Lock()
		calls = f.calls
		require.Empty(t, f.pending, "steps that never return")
		f.checkErrors(s)
		names := slices.Collect(maps.Keys(f.got))
		f.mu.Unlock()
		f.release(names...)
		for _, l := range f.lists {
			l.Release()
		}
		synctest.Wait()
		require.Empty(t, f.pending)
		f.afterwards(s, anchor)
	})
	return calls
}

// checkErrors: who failed, did so because of what was injected, and with a reason.
func (f *faultRun) checkErrors(s scenario) {
	for name, err := range f.errs {
		if err == nil {
			continue
		}
		known := slices.ContainsFunc(f.injected, func(in error) bool { return errors.Is(err, in) }) || errors.Is(err, ErrCanceled)
		switch {
		case name == "close":
			known = known || errors.Is(err, hca.ErrBusy)
		case s.keys > 0:
			known = known || errors.Is(err, hca.ErrNoKeys)
		case s.name == "close":
			known = known || errors.Is(err, hca.ErrClosed)
		}
		require.True(f.t, known, "%s failed with %v; injected was %v", name, err, f.injected)
		if g, ok := f.asked[name]; ok && ranOut(err) && !f.crowded {
			require.False(f.t, f.hopeful[g.Addr], "%s failed with %v although there was something to give back", name, err)
		}
	}
}

// afterwards: the cache is as good as new.
func (f *faultRun) afterwards(s scenario, anchor *Region) {
	t, c := f.t, f.c
	exact := func(kept int) {
		t.Helper()
		live, made, twice := f.b.counts()
		st := c.Stats()
		require.Equal(t, st.Registered+f.leaked, live, "registrations that exist")
		require.EqualValues(t, made, st.Registrations)
		require.Equal(t, st.Registrations, st.Deregistrations+st.DeregisterErrors+uint64(st.Registered))
		require.EqualValues(t, f.leaked, st.DeregisterErrors)
		require.Zero(t, twice, "dropped twice")
		require.Zero(t, f.early, "dropped while held, or less than was asked for")
		if kept >= 0 {
			require.Equal(t, kept, st.Registered)
		}
	}
	settle(c)
	closed := s.name == "close" && f.anchor == nil && !errors.Is(f.errs["close"], hca.ErrBusy)
	if !closed {
		require.NoError(t, invariants(c))
		exact(-1)
		f.mon.onWatch = nil
		if s.name != "unknown memory" && s.keys == 0 {
			before := c.Stats()
			mustGet(t, c, at(7000, 2), 0).Release()
			mustGet(t, c, at(7001, 1), 0).Release()
			st := c.Stats()
			if before.Registered < st.MaxRegions || before.Regions > 1 {
				require.Equal(t, before.Misses+1, st.Misses)
				require.Equal(t, before.Hits+1, st.Hits)
			}
			f.mon.event(at(7000, 1))
			settle(c)
			require.NoError(t, invariants(c))
		}
		if f.anchor != nil || s.name == "unknown memory" {
			require.ErrorIs(t, c.Close(), hca.ErrBusy)
			anchor.Release()
		}
		settle(c)
		require.NoError(t, invariants(c))
		err := c.Close()
		if f.leaked > 0 {
			require.True(t, slices.ContainsFunc(f.injected, func(in error) bool { return errors.Is(err, in) }), "%v", err)
		} else {
			require.NoError(t, err)
		}
	}
	exact(0)
	require.ErrorIs(t, c.Close(), hca.ErrClosed)
	_, err := c.Get(at(0, 1), 0)
	require.ErrorIs(t, err, hca.ErrClosed)
}

// Every single fault at every call of every scenario.
func TestSingleFaults(t *testing.T) {
	runs := 0
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			calls := runFaults(t, s, nil)
			require.Positive(t, calls)
			for call := 1; call <= calls; call++ {
				for _, x := range faultsOf() {
					if ok := t.Run(fmt.Sprintf("call %d %v", call, x), func(t *testing.T) { runFaults(t, s, map[int]fault{call: x}) }); !ok {
						return
					}
					runs++
				}
			}
		})
	}
	t.Logf("%d runs", runs)
}

// Random pairs of faults.
func TestPairsOfFaults(t *testing.T) {
	all, x := scenarios(), faultsOf()
	calls := make([]int, len(all))
	for i, s := range all {
		calls[i] = runFaults(t, s, nil) + 4
	}
	for seed := range uint64(proofSize(t, 1500, 100000)) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		i := rnd.IntN(len(all))
		plan := map[int]fault{}
		for len(plan) < 2 {
			plan[1+rnd.IntN(calls[i])] = x[rnd.IntN(len(x))]
		}
		if !t.Run(fmt.Sprintf("seed %d: %s %v", seed, all[i].name, plan), func(t *testing.T) { runFaults(t, all[i], plan) }) {
			return
		}
	}
}
