package regcache

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"example.com/holdfast/hca"
)

// The model is the cache as a person would write it who has all the time in the
// world and one thread: lists that are walked from end to end. Random programs
// run on both, and after each step everything that can be seen of the cache
// must be what the model says: which Regions there are, in which order they
// would be evicted, and every count of Stats. What a View does beside the cache,
// and how posted Gets come out, is in proof_model_ends_test.go; the steps are in
// proof_model_steps_test.go.
//
// Longer: HOLDFAST_PROOF=full, or go test ./regcache -run 'TestModel$' -rapid.checks=100000

// modelRegion is one registration.
type modelRegion struct {
	g      hca.Range
	access hca.Access
	check  check
	refs   int
	hits   uint64
	kept   bool // in look-up
	once   bool // never was
	parked bool // was in use when something had to be evicted
	warm   bool // hit since it was last looked at
	pinned uint64
	region *Region // the real one, once it was seen
	mine   int     // of the refs, those that the program gives back by Region.Release
}

// modelCall is what the backend is made to do in one call of Register.
type modelCall struct {
	err     error
	event   *hca.Range // memory goes away meanwhile
	adapter int        // which of them fails
}

type cacheModel struct {
	kept  []*modelRegion // in look-up
	loose []*modelRegion // in use, not in look-up
	order []*modelRegion // kept and not parked, looked at longest ago first

	maxRegions int
	maxBytes   uint64
	keys       int   // that each adapter has; 0: enough
	leaked     []int // registrations that could not be dropped, by adapter
	calls      []modelCall
	failDrops  int // so many deregistrations of an adapter fail next
	underWay   bool
	closed     bool
	views      int    // open
	recall     uint64 // how often Views were asked to let go

	want Stats
}

func (m *cacheModel) regions() int { return len(m.kept) + len(m.loose) }

func (m *cacheModel) bytes() (n uint64) {
	for _, r := range slices.Concat(m.kept, m.loose) {
		n += r.pinned
	}
	return n
}

func without(list []*modelRegion, r *modelRegion) []*modelRegion {
	return slices.DeleteFunc(list, func(x *modelRegion) bool { return x == r })
}

// candidates are the Regions that answer a request.
func (m *cacheModel) candidates(g hca.Range, a hca.Access) (out []*modelRegion) {
	for _, r := range m.kept {
		if r.g.Contains(g) && r.access.Has(a) {
			out = append(out, r)
		}
	}
	return out
}

// lookAt is what happens to a Region that was hit since.
func (m *cacheModel) lookAt(r *modelRegion) {
	r.warm = false
	m.order = append(without(m.order, r), r)
}

// lookAtAll is what Snapshot does.
func (m *cacheModel) lookAtAll() {
	for _, r := range slices.Clone(m.order) {
		if r.warm {
			m.lookAt(r)
		}
	}
}

// drop counts a deregistration.
func (m *cacheModel) drop(r *modelRegion) {
	m.want.Hits += r.hits
	r.hits = 0
	if m.dropOn(len(m.leaked)) {
		m.want.Deregistrations++
	} else {
		m.want.DeregisterErrors++
	}
}

// dropOn takes a registration back from the first n adapters, the last of them
// first, and reports whether all of that worked.
func (m *cacheModel) dropOn(n int) bool {
	ok := true
	for i := n - 1; i >= 0; i-- {
		if m.failDrops > 0 {
			m.failDrops--
			m.leaked[i]++
			ok = false
		}
	}
	return ok
}

// leave takes r out of look-up.
func (m *cacheModel) leave(r *modelRegion) {
	m.kept, m.order = without(m.kept, r), without(m.order, r)
	r.kept = false
	if r.refs == 0 {
		m.drop(r)
		return
	}
	m.loose = append(m.loose, r)
	m.askViews() // one may be all that holds it
}

func (m *cacheModel) askViews() {
	if m.views > 0 {
		m.recall++
	}
}

func (m *cacheModel) evictOldest() *modelRegion {
	for len(m.order) > 0 {
		r := m.order[0]
		if r.warm {
			m.lookAt(r)
			continue
		}
		if r.refs == 0 {
			m.want.Evictions++
			m.leave(r)
			return r
		}
		m.order, r.parked = m.order[1:], true
	}
	return nil
}

func (m *cacheModel) fits(regions int, bytes uint64) bool {
	return m.regions()+regions <= m.maxRegions && bytes <= m.maxBytes && m.bytes() <= m.maxBytes-bytes
}

func (m *cacheModel) makeRoom(regions int, bytes uint64) {
	if bytes > m.maxBytes || regions > m.maxRegions || m.fits(regions, bytes) {
		return
	}
	for !m.fits(regions, bytes) {
		if m.evictOldest() == nil {
			m.askViews()
			return
		}
	}
}

func (m *cacheModel) event(g hca.Range, lost bool) {
	m.want.Events++
	if lost {
		m.want.EventsLost++
		g = hca.Whole
	}
	if !g.Empty() {
		m.invalidate(g, false)
	}
}

func (m *cacheModel) invalidate(g hca.Range, held bool) {
	for _, r := range slices.Clone(m.kept) {
		if r.g.Overlaps(g) && (held || r.check != checkNothing) {
			m.want.Invalidations++
			m.leave(r)
		}
	}
}

// register answers whether the new one fits, whether its memory was touched
// meanwhile, and the error. It tries again if something could be given back, or
// if another number of registrations is gone than was to be expected.
func (m *cacheModel) register(g hca.Range, a hca.Access, keep, last bool) (fits, touched bool, err error) {
	bytes := g.Pages(pg).Len
	gone := m.want.Deregistrations
	evictions := m.want.Evictions
	if keep {
		m.makeRoom(1, bytes)
	}
	gone += m.want.Evictions - evictions
	if fits = m.fits(1, bytes); !fits && !last {
		return false, false, nil
	}
	for {
		var call modelCall
		if len(m.calls) > 0 {
			call, m.calls = m.calls[0], m.calls[1:]
		}
		if call.event != nil {
			m.event(*call.event, false)
			touched = touched || g.Overlaps(*call.event)
		}
		failing := len(m.leaked) // the adapter that refuses
		for i, leaked := range m.leaked {
			switch {
			case i == call.adapter%len(m.leaked) && call.err != nil:
				err = call.err
			case m.keys > 0 && m.regions()+leaked >= m.keys:
				err = hca.ErrNoKeys
			default:
				continue
			}
			failing = i
			break
		}
		if failing == len(m.leaked) {
			m.want.Registrations++
			return fits, touched, nil
		}
		if !m.dropOn(failing) {
			m.want.DeregisterErrors++
		}
		if !last || !errors.Is(err, hca.ErrNoKeys) && !errors.Is(err, hca.ErrNoMemory) {
			return false, false, err
		}
		m.askViews()
		before, freed, n := m.want.Deregistrations, uint64(0), uint64(0)
		for n == 0 || freed < bytes {
			r := m.evictOldest()
			if r == nil {
				break
			}
			n++
			freed += r.pinned
		}
		if n == 0 && gone == before {
			return false, false, err
		}
		gone = before + n
		m.want.Retries++
		err = nil
	}
}

// attempt registers g until it can be kept; a plan that is not the last is
// tried once.
func (m *cacheModel) attempt(g hca.Range, a hca.Access, held bool, once hca.Unkept, last bool) (*modelRegion, error) {
	for n := 1; ; n++ {
		r := &modelRegion{g: g, access: a, pinned: g.Pages(pg).Len}
		w := modelWatch(g)
		switch {
		case once != hca.KeptAllRight:
			w.Why = once
		case held:
			w = hca.Watch{Kind: hca.MemHeld}
		}
		if w.Why != hca.KeptAllRight && !last {
			return nil, nil
		}
		switch r.check = checkProbe; w.Kind {
		case hca.MemHeld:
			r.check = checkNothing
		case hca.MemOwned:
			r.check = checkCounter
		}
		fits, touched, err := m.register(g, a, w.Why == hca.KeptAllRight, last)
		if err != nil || !fits && !last {
			return nil, err
		}
		why := w.Why
		switch {
		case why != hca.KeptAllRight:
		case !fits:
			why = hca.UnkeptLimit
		case r.check != checkNothing && touched:
			why = hca.UnkeptUnsettled
		default:
			m.publish(r)
			return r, nil
		}
		again := (why == hca.UnkeptNotMapped || why == hca.UnkeptUnsettled) && once == hca.KeptAllRight && n < maxAttempts
		if again || !last {
			m.want.Redone++
			m.drop(r)
			if last {
				continue
			}
			return nil, nil
		}
		m.want.UsedOnce[why]++
		r.once, r.refs = true, 1
		m.loose = append(m.loose, r)
		return r, nil
	}
}

func (m *cacheModel) publish(r *modelRegion) {
	for _, old := range slices.Clone(m.kept) {
		if r.g.Contains(old.g) && r.access.Has(old.access) && r.check <= old.check {
			m.want.Replaced++
			m.leave(old)
		}
	}
	r.kept, r.refs = true, 1
	m.kept = append(m.kept, r)
	m.order = append(m.order, r)
}

// miss is a Get that registers.
func (m *cacheModel) miss(g hca.Range, a hca.Access, held bool, once hca.Unkept) (*modelRegion, error) {
	m.want.Misses++
	g = g.Pages(pg)
	if once == hca.KeptAllRight {
		union := a
		for _, r := range m.kept {
			if r.g.Contains(g) {
				union |= r.access
			}
		}
		if union != a {
			if r, err := m.attempt(g, union, held, once, false); r != nil && err == nil {
				return r, nil
			}
		}
	}
	r, err := m.attempt(g, a, held, once, true)
	if err != nil {
		m.want.Failures++
	}
	return r, err
}

// vague reports whether it is not specified which of several Regions a hit looks
// at, and it matters.
func (m *cacheModel) vague(g hca.Range, a hca.Access) bool {
	cand := m.candidates(g, a)
	return m.underWay && len(cand) > 1 && slices.ContainsFunc(cand, func(r *modelRegion) bool { return r.check == checkProbe })
}

// unproved reports whether a hit on r cannot be proved for now.
func (m *cacheModel) unproved(r *modelRegion) bool { return m.underWay && r.check == checkProbe }

// look is Cache.Get: it answers with the Regions of which a hit takes one, or
// with what a miss makes, or with the error.
func (m *cacheModel) look(g hca.Range, a hca.Access, held bool) (hit []*modelRegion, made *modelRegion, err error) {
	cand := m.candidates(g, a)
	switch {
	case m.closed:
		return nil, nil, hca.ErrClosed
	case len(cand) == 0:
		made, err = m.miss(g, a, held, hca.KeptAllRight)
	case m.unproved(cand[0]):
		cand[0].warm = true
		made, err = m.miss(g, a, held, hca.UnkeptUnsettled)
	default:
		return cand, nil, nil
	}
	return nil, made, err
}

func (m *cacheModel) release(r *modelRegion) {
	r.refs--
	switch {
	case r.refs > 0:
	case !r.kept:
		m.loose = without(m.loose, r)
		m.drop(r)
	case r.parked:
		r.parked = false
		m.order = append(m.order, r)
		if !m.fits(0, 0) {
			m.makeRoom(0, 0)
		}
	}
}

// inUse is how many Regions are.
func (m *cacheModel) inUse() int {
	n := len(m.loose)
	for _, r := range m.kept {
		if r.refs > 0 {
			n++
		}
	}
	return n
}

// modelWatch: pages 0 to 15 are owned, 32 and 33 have no source, 34 and 35 are
// not mapped; all else is foreign. A mixture is what is known least.
func modelWatch(g hca.Range) hca.Watch {
	switch {
	case g.Overlaps(at(34, 2)):
		return hca.Watch{Why: hca.UnkeptNotMapped}
	case g.Overlaps(at(32, 2)):
		return hca.Watch{Why: hca.UnkeptNoSource}
	case at(0, 16).Contains(g):
		return hca.Watch{Kind: hca.MemOwned}
	}
	return hca.Watch{Kind: hca.MemForeign, Domains: 1}
}

// modelMonitor is a script whose memory is of several kinds.
type modelMonitor struct{ *scriptMonitor }

func (modelMonitor) Watch(g hca.Range) hca.Watch { return modelWatch(g) }

// modelProgram is a program as data.
type modelProgram struct {
	regions  int    // Config.MaxRegions
	pages    uint64 // Config.MaxBytes
	keys     int    // that each adapter has; 0: enough
	adapters int    // one, or several joined
	omit     omission
	steps    []modelStep
}

func drawModelProgram(t *rapid.T) modelProgram {
	p := modelProgram{
		regions:  rapid.SampledFrom([]int{1, 2, 3, 5, 8, 100}).Draw(t, "MaxRegions"),
		pages:    rapid.SampledFrom([]uint64{1, 4, 10, 20, 1000}).Draw(t, "pages"),
		keys:     rapid.SampledFrom([]int{0, 0, 2, 4}).Draw(t, "keys"),
		adapters: rapid.SampledFrom([]int{1, 1, 2, 3}).Draw(t, "adapters"),
	}
	n := []int{10, 25, 40, 100}[DrawBits(t, 2)]
	p.steps = rapid.SliceOfN(rapid.Custom(drawModelStep), n, n).Draw(t, "steps")
	return p
}

// print is the source of a Go test that replays the program.
func (p modelProgram) print(name, comment string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "replayModel(t, modelProgram{\nregions: %d, pages: %d, keys: %d, adapters: %d, omit: %d,\nsteps: []modelStep{\n",
		p.regions, p.pages, p.keys, p.adapters, p.omit)
	for _, s := range p.steps {
		fmt.Fprintf(&b, "{%s, %d, %d, %d, %d},\n", stepNames[s.kind], s.a, s.b, s.c, s.d)
	}
	b.WriteString("},\n})\n")
	return PrintTest(name, comment, b.String())
}

// replayModel runs a program and fails if it does.
func replayModel(t *testing.T, p modelProgram) {
	if _, err := p.run(); err != nil {
		t.Fatal(err)
	}
}

// shrink makes a program that failed shorter, and prints it as a Go test.
func (p modelProgram) shrink(why error, name string) string {
	until := time.Now().Add(20 * time.Second)
	fails := func(with modelProgram) bool {
		if time.Now().After(until) {
			return false
		}
		_, err := with.run()
		if err != nil {
			p, why = with, err
		}
		return err != nil
	}
	simpler := func(s modelStep) (out []modelStep) {
		for _, n := range (Numbers{s.a, s.b, s.c, s.d}).Simpler() {
			out = append(out, modelStep{s.kind, n[0], n[1], n[2], n[3]})
		}
		return out
	}
	steps := func() {
		Shrink([][]modelStep{p.steps}, simpler, func(s [][]modelStep) bool {
			with := p
			with.steps = s[0]
			return fails(with)
		})
	}
	steps()
	for _, change := range []func(p *modelProgram){
		func(p *modelProgram) { p.adapters = 1 }, func(p *modelProgram) { p.keys = 0 }, func(p *modelProgram) { p.pages = 1000 }, func(p *modelProgram) { p.regions = 100 },
	} {
		with := p
		change(&with)
		fails(with)
	}
	steps()
	return p.print(name, fmt.Sprintf("%s: found by TestModel:\n%v", name, why))
}

// modelRig is the cache and the model side by side.
type modelRig struct {
	p    modelProgram
	m    *cacheModel
	c    *Cache
	bs   []*nopBackend // the adapters
	back Backend
	mon  *scriptMonitor
	buf  []byte // Go heap

	all       []*modelRegion // that were answered with
	calls     []modelCall
	call      modelCall // under way
	failDrops atomic.Int64
	gate      *modelGate

	views [2]modelView
	q     *Queue
	queue []modelOutcome // done and not polled
	id    uint64
}

var errModel = errors.New("injected")

func (g *modelRig) settle() { settle(g.c) }

func newModelRig(t require.TestingT, p modelProgram, buf []byte) *modelRig {
	g := &modelRig{p: p, mon: &scriptMonitor{}, buf: buf}
	var backs []Backend
	for i := range max(p.adapters, 1) {
		b := &nopBackend{}
		b.onRegister = func(hca.Range, hca.Access) error { return g.onRegister(i) }
		b.onDeregister = func(*hca.MR) error {
			if n := g.failDrops.Load(); n > 0 {
				g.failDrops.Store(n - 1)
				return errModel
			}
			return nil
		}
		g.bs = append(g.bs, b)
		backs = append(backs, b)
	}
	var err error
	g.back, err = Join(backs...)
	require.NoError(t, err)
	g.m = &cacheModel{leaked: make([]int, len(g.bs))}
	g.open(t)
	return g
}

// open makes the cache, and the model of one that is new. What the adapters
// have lost stays lost.
func (g *modelRig) open(t require.TestingT) {
	was := g.m
	g.m = &cacheModel{
		maxRegions: g.p.regions, maxBytes: g.p.pages * pg, keys: g.p.keys,
		leaked: was.leaked, calls: was.calls, failDrops: was.failDrops, underWay: was.underWay,
	}
	var err error
	g.c, err = New(g.back, Config{
		Monitor: modelMonitor{g.mon}, MaxRegions: g.p.regions, MaxBytes: g.p.pages * pg,
		MaxMerge:   1, // merging is for another test: what it picks among equals is not specified
		SweepEvery: -1,
	})
	require.NoError(t, err)
	g.c.Omit(uint8(g.p.omit))
}

// onRegister is what the i-th adapter does when it is asked to register.
func (g *modelRig) onRegister(i int) error {
	if i == 0 {
		if gate := g.gate; gate != nil {
			g.gate = nil
			close(gate.entered)
			<-gate.open
		}
		g.call = modelCall{}
		if len(g.calls) > 0 {
			g.call, g.calls = g.calls[0], g.calls[1:]
		}
		if g.call.event != nil {
			g.mon.event(*g.call.event)
			g.settle()
		}
	}
	if i == g.call.adapter%len(g.bs) && g.call.err != nil {
		return g.call.err
	}
	if live, _, _ := g.bs[i].counts(); g.p.keys > 0 && live >= g.p.keys {
		return hca.ErrNoKeys
	}
	return nil
}

// modelFault is what a run found wrong.
type modelFault struct{ msg string }

func (f *modelFault) Errorf(format string, args ...any) {
	if f.msg == "" {
		f.msg = fmt.Sprintf(format, args...)
		if _, what, ok := strings.Cut(f.msg, "Error:"); ok { // what comes before is where in this file
			f.msg = what
		}
		lines := strings.FieldsFunc(f.msg, func(r rune) bool { return r == '\n' })
		for i, l := range lines {
			lines[i] = strings.TrimSpace(l)
		}
		f.msg = strings.Join(lines, "\n")
	}
}
func (f *modelFault) FailNow() { panic(f) }

// run runs the program, and says how many steps did something and what went
// wrong.
func (p modelProgram) run() (did [stepKinds]int, err error) {
	g := (*modelRig)(nil)
	at := "at the beginning"
	defer func() {
		switch e := recover().(type) {
		case nil:
			return
		case *modelFault:
			err = fmt.Errorf("%s: %s", at, e.msg)
			g.abandon()
		default:
			err = fmt.Errorf("%s: panic: %v\n%s", at, e, debug.Stack())
		}
	}()
	f := &modelFault{}
	g = newModelRig(f, p, make([]byte, 11*pg))
	for i, s := range p.steps {
		at = fmt.Sprintf("step %d, %v", i, s)
		if g.step(f, s) {
			did[s.kind]++
		}
		g.check(f)
	}
	at = "at the end"
	g.end(f)
	return did, nil
}

// end gives everything back.
func (g *modelRig) end(t require.TestingT) {
	g.closeEnds(t)
	for _, r := range g.all {
		for r.mine > 0 {
			g.give(r)
		}
	}
	g.check(t)
	g.close(t)
	g.check(t)
}

// abandon leaves nothing behind of a run that went wrong, whoever thinks that he
// has what: every reference that there is is given back.
func (g *modelRig) abandon() {
	if g == nil || g.c == nil {
		return
	}
	g.failDrops.Store(0)
	if g.q != nil {
		_ = g.q.Close()
	}
	for i := range g.views {
		if v := g.views[i].v; v != nil {
			v.newest = 0
			for i := range v.slots {
				v.slots[i].out = 0
			}
			_ = v.Close()
		}
	}
	g.c.mu.Lock()
	all := g.c.index.all(nil)
	for r := range g.c.loose {
		all = append(all, r)
	}
	g.c.mu.Unlock()
	for _, r := range all {
		for r.state.Load()&stRefs > 0 {
			r.Release()
		}
	}
	_ = g.c.Close() // the program may have closed it, and may have planned failures
}

// close closes the cache.
func (g *modelRig) close(t require.TestingT) {
	busy := g.m.inUse()
	err := g.c.Close()
	switch {
	case g.m.closed:
		require.ErrorIs(t, err, hca.ErrClosed)
		return
	case busy+g.m.views > 0:
		var b *BusyError
		require.ErrorAs(t, err, &b)
		require.Equal(t, busy, b.Regions)
		require.Len(t, b.Views, g.m.views)
		return
	}
	for _, r := range slices.Clone(g.m.kept) {
		g.m.leave(r)
	}
	g.m.closed = true
	if g.m.want.DeregisterErrors > 0 {
		require.ErrorIs(t, err, errModel)
	} else {
		require.NoError(t, err)
	}
}

// evictionOrder is what the cache would evict, in that order.
func (c *Cache) evictionOrder() (out []*Region) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := c.recency.oldest; at != nil; at = at.younger {
		r := at.of
		out = append(out, r)
	}
	return out
}

// bind finds the Regions that nobody was answered with because a later part of
// the same call failed.
func (g *modelRig) bind(t require.TestingT) {
	for _, r := range g.m.kept {
		if r.region != nil {
			continue
		}
		g.c.mu.Lock()
		all := g.c.index.all(nil)
		g.c.mu.Unlock()
		for _, real := range all {
			known := slices.ContainsFunc(g.m.kept, func(o *modelRegion) bool { return o.region == real })
			if !known && real.Range() == r.g && real.Access() == r.access {
				r.region = real
			}
		}
		require.NotNil(t, r.region, "%v is not in the index", r.g)
	}
}

// check compares all that can be seen.
func (g *modelRig) check(t require.TestingT) {
	g.settle()
	g.bind(t)
	m := g.m
	want := m.want
	want.Regions, want.Registered, want.InUseOnce = len(m.kept), m.regions(), len(m.loose)
	want.BytesPinned, want.MaxRegions, want.MaxBytes = m.bytes(), m.maxRegions, m.maxBytes
	for _, r := range slices.Concat(m.kept, m.loose) {
		want.Hits += r.hits
		if !r.kept && !r.once {
			want.BytesDead += r.pinned
		}
	}
	got := g.c.Stats()
	want.Backend, want.Monitor, want.SlowHits = got.Backend, got.Monitor, got.SlowHits
	require.Equal(t, want, got)

	var order, inList []string
	name := func(r *Region) string { return fmt.Sprintf("%p %v %v", r, r.Range(), r.Access()) }
	for _, r := range m.order {
		order = append(order, name(r.region))
	}
	for _, r := range g.c.evictionOrder() {
		inList = append(inList, name(r))
	}
	require.Equal(t, order, inList, "the order of eviction")
	for _, r := range m.kept {
		require.True(t, r.region.cold.inIndex)
		require.EqualValues(t, r.refs, r.region.state.Load()&stRefs)
	}
	for i, b := range g.bs {
		live, _, twice := b.counts()
		require.Equal(t, m.regions()+m.leaked[i], live, "registrations that adapter %d has", i)
		require.Zero(t, twice)
	}
	g.checkEnds(t)
	if err := invariants(g.c); err != nil {
		require.NoError(t, err)
	}
}

func TestModel(t *testing.T) {
	var steps, done int
	var did [stepKinds]int
	for range proofSize(t, 12, 1000) {
		steps += checkModel(t, 0, &did)
	}
	for _, n := range did {
		done += n
	}
	t.Logf("%d steps, of which %d found something to do", steps, done)
	for kind, n := range did {
		if !testing.Short() {
			require.True(t, n > 0 || modelStepKind(kind) == stNothing, "%s never did anything", stepNames[kind])
		}
	}
}

// checkModel runs random programs. One that fails is made shorter and printed as
// a Go test.
func checkModel(t *testing.T, omit omission, did *[stepKinds]int) (steps int) {
	var failed *modelProgram
	var why error
	defer NoShrinking()()
	defer func() {
		if failed != nil {
			t.Logf("as a Go test:\n\n%s", failed.shrink(why, "TestModelFound"))
		}
	}()
	rapid.Check(t, func(t *rapid.T) {
		p := drawModelProgram(t)
		p.omit = omit
		d, err := p.run()
		for i, n := range d {
			did[i] += n
		}
		steps += len(p.steps)
		if err != nil {
			failed, why = &p, err
			t.Fatalf("%v", err)
		}
	})
	return steps
}
