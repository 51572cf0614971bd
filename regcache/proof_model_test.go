package regcache

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"example.com/holdfast/hca"
)

// The model is the cache as a person would write it who has all the time in the
// world and one thread: lists that are walked from end to end. Random programs
// run on both, and after each step everything that can be seen of the cache
// must be what the model says: which Regions there are, in which order they
// would be evicted, and every count of Stats.
//
// Longer: go test ./regcache -run TestModel -rapid.checks=100000 -rapid.steps=200

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
}

// modelCall is what the backend is made to do in one call of Register.
type modelCall struct {
	err   error
	event *hca.Range // memory goes away meanwhile
}

type cacheModel struct {
	kept  []*modelRegion // in look-up
	loose []*modelRegion // in use, not in look-up
	order []*modelRegion // kept and not parked, looked at longest ago first

	maxRegions int
	maxBytes   uint64
	keys       int // that the backend has; 0: enough
	leaked     int // registrations that could not be dropped
	calls      []modelCall
	failDrops  int // so many deregistrations fail next
	underWay   bool
	closed     bool

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
	if m.failDrops > 0 {
		m.failDrops--
		m.want.DeregisterErrors++
		m.leaked++
		return
	}
	m.want.Deregistrations++
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
		err := call.err
		if err == nil && m.keys > 0 && m.regions()+m.leaked >= m.keys {
			err = hca.ErrNoKeys
		}
		if err == nil {
			m.want.Registrations++
			return fits, touched, nil
		}
		if !last || !errors.Is(err, hca.ErrNoKeys) && !errors.Is(err, hca.ErrNoMemory) {
			return false, false, err
		}
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
		case r.check != checkNothing && (touched || r.check == checkProbe && m.underWay):
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

// modelRig is the cache and the model side by side.
type modelRig struct {
	m   *cacheModel
	c   *Cache
	b   *nopBackend
	mon *scriptMonitor
	buf []byte // Go heap

	all       []*modelRegion // that were answered with, and have users
	calls     []modelCall
	failDrops atomic.Int64
	broken    error
}

func (g *modelRig) settle() { settle(g.c) }

func newModelRig(t *rapid.T, buf []byte) *modelRig {
	g := &modelRig{b: &nopBackend{}, mon: &scriptMonitor{}, buf: buf, broken: errors.New("injected")}
	cfg := Config{
		Monitor:    modelMonitor{g.mon},
		MaxRegions: rapid.SampledFrom([]int{1, 2, 3, 5, 8, 100}).Draw(t, "MaxRegions"),
		MaxBytes:   pg * rapid.SampledFrom([]uint64{1, 4, 10, 20, 1000}).Draw(t, "pages"),
		MaxMerge:   1, // merging is for another test: what it picks among equals is not specified
		SweepEvery: -1,
	}
	g.m = &cacheModel{maxRegions: cfg.MaxRegions, maxBytes: cfg.MaxBytes, keys: rapid.SampledFrom([]int{0, 0, 2, 4}).Draw(t, "keys")}
	g.b.onRegister = func(hca.Range, hca.Access) error {
		var call modelCall
		if len(g.calls) > 0 {
			call, g.calls = g.calls[0], g.calls[1:]
		}
		if call.event != nil {
			g.mon.event(*call.event)
			g.settle()
		}
		if call.err != nil {
			return call.err
		}
		if live, _, _ := g.b.counts(); g.m.keys > 0 && live >= g.m.keys {
			return hca.ErrNoKeys
		}
		return nil
	}
	g.b.onDeregister = func(*hca.MR) error {
		if n := g.failDrops.Load(); n > 0 {
			g.failDrops.Store(n - 1)
			return g.broken
		}
		return nil
	}
	c, err := New(g.b, cfg)
	require.NoError(t, err)
	g.c = c
	return g
}

var modelAccess = []hca.Access{hca.LocalRead, hca.LocalWrite, hca.RemoteRead, hca.LocalWrite | hca.RemoteWrite, hca.LocalWrite | hca.RemoteAtomic}

// drawRange is some bytes of pages that matter, now and then not whole ones.
func (g *modelRig) drawRange(t *rapid.T) hca.Range {
	page, pages := rapid.Uint64Range(0, 36).Draw(t, "page"), rapid.SampledFrom([]uint64{1, 1, 1, 2, 3, 5, 9}).Draw(t, "pages")
	r := at(page, pages)
	if rapid.IntRange(0, 9).Draw(t, "where") == 0 {
		r.Addr = hca.RangeOf(g.buf).Addr + page%8*pg
	}
	if rapid.Bool().Draw(t, "odd") {
		r.Addr += 100
		r.Len -= min(rapid.Uint64Range(100, 2*pg).Draw(t, "less"), r.Len-1)
	}
	return r
}

func (g *modelRig) get(t *rapid.T, r hca.Range, a hca.Access, bytes []byte) {
	m := g.m
	cand := m.candidates(r, a)
	foreign := 0
	for _, x := range cand {
		if x.check == checkProbe {
			foreign++
		}
	}
	if m.underWay && foreign > 0 && len(cand) > 1 {
		t.Skip("which of several Regions a hit looks at is not specified")
	}
	var want *modelRegion
	var wantErr error
	switch {
	case m.closed:
		wantErr = hca.ErrClosed
	case len(cand) == 0:
		want, wantErr = m.miss(r, a, bytes != nil, hca.KeptAllRight)
	case m.underWay && foreign > 0:
		cand[0].warm = true
		want, wantErr = m.miss(r, a, bytes != nil, hca.UnkeptUnsettled)
	}
	var got *Region
	var err error
	if bytes != nil {
		got, err = g.c.GetBytes(bytes, a)
	} else {
		got, err = g.c.Get(r, a)
	}
	if wantErr != nil {
		require.ErrorIs(t, err, wantErr)
		require.Nil(t, got)
		return
	}
	require.NoError(t, err)
	if want == nil { // a hit, on one of them
		i := slices.IndexFunc(cand, func(x *modelRegion) bool { return x.region == got })
		require.GreaterOrEqual(t, i, 0, "hit %v, which does not do", got.Range())
		want = cand[i]
		want.refs++
		want.hits++
		want.warm = true
	}
	if want.region == nil {
		want.region = got
	}
	require.Same(t, want.region, got)
	require.Equal(t, want.g, got.Range())
	require.Equal(t, want.access, got.Access())
	require.Equal(t, want.once, got.UsedOnce() != hca.KeptAllRight)
	if !slices.Contains(g.all, want) {
		g.all = append(g.all, want)
	}
}

func (g *modelRig) actions() map[string]func(*rapid.T) {
	access := rapid.SampledFrom(modelAccess)
	used := func(t *rapid.T) *modelRegion {
		g.all = slices.DeleteFunc(g.all, func(r *modelRegion) bool { return r.refs == 0 })
		if len(g.all) == 0 {
			t.Skip("nothing is in use")
		}
		return rapid.SampledFrom(g.all).Draw(t, "region")
	}
	open := func(t *rapid.T) {
		if g.m.closed {
			t.Skip("closed")
		}
	}
	get := func(t *rapid.T) { g.get(t, g.drawRange(t), access.Draw(t, "access"), nil) }
	getBytes := func(t *rapid.T) {
		from := rapid.IntRange(0, 8*pg-1).Draw(t, "from")
		b := g.buf[from:min(len(g.buf), from+rapid.IntRange(1, 3*pg).Draw(t, "length"))]
		g.get(t, hca.RangeOf(b), access.Draw(t, "access"), b)
	}
	release := func(t *rapid.T) {
		r := used(t)
		g.m.release(r)
		r.region.Release()
	}
	event := func(t *rapid.T) {
		open(t)
		e := hca.Event{Range: g.drawRange(t), Cause: rapid.SampledFrom([]hca.Cause{hca.CauseUnmap, hca.CauseRemap, hca.CauseDiscard, hca.CauseOwner}).Draw(t, "cause")}
		switch rapid.IntRange(0, 19).Draw(t, "lost") {
		case 0:
			e.Cause = hca.CauseLost // everything, whatever range it names
		case 1:
			e.Range.Len = 0
		}
		g.m.event(e.Range, e.Cause == hca.CauseLost)
		g.mon.mu.Lock()
		g.mon.events = append(g.mon.events, e)
		g.mon.mu.Unlock()
		g.mon.counter.Add(hca.CounterStep)
		g.c.wake()
	}
	return map[string]func(*rapid.T){
		"get": get, "get again": get, "get more": get,
		"get bytes": getBytes,
		"release":   release, "release more": release,
		"event": event,
		"plan the backend": func(t *rapid.T) {
			call := modelCall{}
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				call.err = hca.ErrNoKeys
			case 1:
				call.err = &hca.OpError{Op: "register", Err: hca.ErrNoMemory}
			case 2:
				call.err = g.broken
			case 3:
				e := g.drawRange(t)
				call.event = &e
			}
			g.m.calls = append(g.m.calls, call)
			g.calls = append(g.calls, call)
		},
		"plan a failing deregistration": func(t *rapid.T) {
			if g.m.leaked > 0 && g.m.keys > 0 {
				t.Skip("all keys would be leaked in the end")
			}
			g.m.failDrops++
			g.failDrops.Add(1)
		},
		"under way": func(*rapid.T) {
			g.m.underWay = !g.m.underWay
			g.mon.underWay.Store(g.m.underWay)
		},
		"trim": func(t *rapid.T) {
			n := pg * rapid.Uint64Range(0, 8).Draw(t, "pages")
			var want uint64
			for want < n {
				r := g.m.evictOldest()
				if r == nil {
					break
				}
				want += r.pinned
			}
			require.Equal(t, want, g.c.Trim(n))
		},
		"flush": func(t *rapid.T) {
			if rapid.IntRange(0, 3).Draw(t, "seldom") > 0 {
				t.Skip("not so often")
			}
			want := 0
			for ; g.m.evictOldest() != nil; want++ {
			}
			require.Equal(t, want, g.c.Flush())
		},
		"invalidate": func(t *rapid.T) {
			r := g.drawRange(t)
			before := len(g.m.loose)
			if r.Valid() {
				g.m.want.Events++
				g.m.invalidate(r, true)
			}
			require.Equal(t, len(g.m.loose)-before, g.c.Invalidate(r))
		},
		"snapshot": func(t *rapid.T) {
			g.m.lookAtAll()
			require.Len(t, g.c.Snapshot(), g.m.regions())
		},
		"bad input": func(t *rapid.T) {
			for r, a := range map[hca.Range]hca.Access{{}: 0, {Addr: ^uint64(0), Len: 2}: 0, at(0, 1): hca.RemoteWrite, at(1, 1): hca.OnDemand} {
				if len(g.m.candidates(r, a)) > 0 {
					continue
				}
				_, err := g.c.Get(r, a)
				require.ErrorIs(t, err, hca.ErrInvalid)
			}
		},
		"release once too often": func(t *rapid.T) {
			if len(g.m.kept) == 0 {
				t.Skip("nothing there")
			}
			if r := rapid.SampledFrom(g.m.kept).Draw(t, "region"); r.refs == 0 {
				require.Panics(t, r.region.Release)
			}
		},
		"close": func(t *rapid.T) {
			if rapid.IntRange(0, 5).Draw(t, "seldom") > 0 {
				t.Skip("not so often")
			}
			g.close(t)
		},
		"": g.check,
	}
}

func (g *modelRig) close(t require.TestingT) {
	busy := len(g.m.loose)
	for _, r := range g.m.kept {
		if r.refs > 0 {
			busy++
		}
	}
	err := g.c.Close()
	switch {
	case g.m.closed:
		require.ErrorIs(t, err, hca.ErrClosed)
		return
	case busy > 0:
		var b *BusyError
		require.ErrorAs(t, err, &b)
		require.Equal(t, busy, b.Regions)
		return
	}
	for _, r := range slices.Clone(g.m.kept) {
		g.m.leave(r)
	}
	g.m.closed = true
	if g.m.want.DeregisterErrors > 0 {
		require.ErrorIs(t, err, g.broken)
	} else {
		require.NoError(t, err)
	}
}

// check compares all that can be seen.
func (g *modelRig) check(t *rapid.T) {
	g.settle()
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
	g.c.mu.Lock()
	for r := g.c.recency.oldest; r != nil; r = r.cold.younger {
		inList = append(inList, name(r))
	}
	g.c.mu.Unlock()
	require.Equal(t, order, inList, "the order of eviction")
	for _, r := range m.kept {
		require.True(t, r.region.cold.inIndex)
		require.EqualValues(t, r.refs, r.region.state.Load()&stRefs)
	}
	live, made, twice := g.b.counts()
	require.Equal(t, m.regions()+m.leaked, live, "registrations that exist")
	require.EqualValues(t, want.Registrations, made)
	require.Zero(t, twice)
	require.NoError(t, invariants(g.c))
}

func TestModel(t *testing.T) {
	buf := make([]byte, 11*pg)
	var steps atomic.Int64
	program := func(t *rapid.T) {
		g := newModelRig(t, buf)
		defer func() { // whatever happened, leave nothing behind
			for _, r := range g.all {
				for ; r.refs > 0 && r.region != nil; r.refs-- {
					r.region.Release()
				}
			}
			_ = g.c.Close() // the program may have closed it, and may have planned failures
		}()
		actions := g.actions()
		check := actions[""]
		actions[""] = func(t *rapid.T) { steps.Add(1); check(t) }
		t.Repeat(actions)
		for _, r := range g.all {
			for r.refs > 0 {
				g.m.release(r)
				r.region.Release()
			}
		}
		g.check(t)
		g.close(t)
		g.check(t)
	}
	for range proofSize(t, 40, 1000) {
		rapid.Check(t, program)
	}
	t.Logf("%d operations", steps.Load())
}
