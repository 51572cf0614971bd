package odpbackend

import (
	"errors"
	"maps"
	"math/bits"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"example.com/holdfast/hca"
)

// The Prefetcher against a plain model of it: a set of pages that are warm, a
// set of pages that are mapped, and the requests that are outstanding. Random
// requests, ends of calls, and memory that comes and goes.

// registrations of the model, to the byte.
var registered = map[uint32]hca.Range{
	7: {Addr: 100, Len: 150*page - 200}, // ends inside a page
	8: {Addr: 50*page + 1, Len: 60 * page},
}

type warmPage struct {
	key   uint32
	write bool
	fresh bool
}

type posted struct {
	sge     hca.SGE
	write   bool
	ready   map[uint64]bool // pages that were ready at one moment since it was posted
	unmap   bool            // one of its pages was not mapped at one moment
	gone    bool            // Gone was told of a byte of it
	refused int             // ErrAgain for a call that had a page of it
}

type underWay struct {
	call    call
	spoiled bool
}

type model struct {
	t    *rapid.T
	cfg  PrefetchConfig
	p    *Prefetcher
	dev  *scripted
	q    *Queue
	next uint64

	mapped  map[uint64]bool
	warm    map[uint64]warmPage
	waiting map[uint64]*posted   // requests, by id
	flying  map[uint64]*underWay // calls, by the device's id
	made    int                  // calls seen

	warmed, useful, useless uint64
}

// within says which pages r has.
func within(r hca.Range) (ps []uint64) {
	for p := r.Addr / page; p*page < r.End(); p++ {
		ps = append(ps, p)
	}
	return ps
}

func (w warmPage) serves(key uint32, write bool) bool { return w.key == key && (w.write || !write) }

func (m *model) allWarm(s hca.SGE, write bool) bool {
	for _, p := range within(s.Range()) {
		if w, ok := m.warm[p]; !ok || !w.serves(s.LKey, write) {
			return false
		}
	}
	return true
}

func (m *model) drop(p uint64) {
	if w, ok := m.warm[p]; ok {
		if w.fresh {
			m.useless++
		}
		delete(m.warm, p)
	}
}

func (m *model) outstanding() (n int, bytes uint64) {
	for _, r := range m.waiting {
		bytes += r.sge.Len
	}
	return len(m.waiting), bytes
}

func (m *model) drawRange() hca.SGE {
	key := rapid.SampledFrom([]uint32{7, 8}).Draw(m.t, "key")
	in := registered[key]
	start := rapid.Uint64Range(in.Addr, in.End()-1).Draw(m.t, "start")
	length := rapid.Uint64Range(1, min(12*page, in.End()-start)).Draw(m.t, "length")
	return hca.SGE{Addr: start, Len: length, LKey: key}
}

func (m *model) post(*rapid.T) {
	s, write := m.drawRange(), rapid.Bool().Draw(m.t, "write")
	m.next++
	n, bytes := m.outstanding()
	warm := m.allWarm(s, write)
	err := m.p.Post(m.q, m.next, s, write)
	if full := !warm && (n == m.cfg.MaxRequests || bytes+s.Len > m.cfg.MaxBytes); full {
		require.ErrorIs(m.t, err, hca.ErrQueueFull)
		return
	}
	require.NoError(m.t, err)
	m.waiting[m.next] = &posted{sge: s, write: write, ready: map[uint64]bool{}}
	m.look()
	if warm {
		require.NotContains(m.t, m.waiting, m.next, "warm memory is answered at once")
	}
}

// end ends one call the way the memory says.
func (m *model) end(*rapid.T) {
	if len(m.flying) == 0 {
		m.t.Skip("nothing under way")
	}
	id := rapid.SampledFrom(slices.Sorted(maps.Keys(m.flying))).Draw(m.t, "call")
	m.endCall(id, rapid.IntRange(0, 3).Draw(m.t, "again") == 0)
}

func (m *model) endCall(id uint64, again bool) {
	u := m.flying[id]
	delete(m.flying, id)
	ps := within(u.call.sge.Range())
	var err error
	switch {
	case again:
		err = hca.ErrAgain
	case slices.ContainsFunc(ps, func(p uint64) bool { return !m.mapped[p] }):
		err = hca.ErrBadAddress
	}
	status := hca.WCSuccess
	if err != nil {
		status = hca.WCGeneralErr
	}
	for _, r := range m.waiting {
		mine := false
		for _, p := range within(r.sge.Range()) {
			in := slices.Contains(ps, p) && u.call.sge.LKey == r.sge.LKey
			mine = mine || in
			if in && err == nil && (u.call.write || !r.write) {
				r.ready[p] = true
			}
		}
		if mine && again {
			r.refused++
		}
	}
	if err == nil && !u.spoiled {
		m.add(u.call)
	}
	m.dev.end(m.t, u.call.sge.Range(), status, err)
	more, perr := m.p.progress()
	require.NoError(m.t, perr)
	require.True(m.t, more)
	m.look()
}

func (m *model) add(c call) {
	for _, p := range within(c.sge.Range()) {
		if w, ok := m.warm[p]; ok && w.key != c.sge.LKey {
			m.drop(p)
		}
		w, ok := m.warm[p]
		if !ok {
			w = warmPage{key: c.sge.LKey, fresh: true}
			m.warmed++
		}
		w.write = w.write || c.write
		m.warm[p] = w
	}
}

func (m *model) used(*rapid.T) {
	s := m.drawRange()
	m.p.Used(s)
	for _, p := range within(s.Range()) {
		if w, ok := m.warm[p]; ok && w.key == s.LKey && w.fresh {
			w.fresh = false
			m.warm[p] = w
			m.useful++
		}
	}
	m.look()
}

func (m *model) forget(r hca.Range) {
	for _, p := range within(r) {
		m.drop(p)
		for _, u := range m.flying {
			u.spoiled = u.spoiled || slices.Contains(within(u.call.sge.Range()), p)
		}
	}
}

func (m *model) discard(*rapid.T) {
	r := m.drawRange().Range()
	m.forget(r)
	m.p.Forget(r)
	m.look()
}

// unmap takes memory away; whoever watches tells the Prefetcher, or nobody
// does.
func (m *model) unmap(*rapid.T) {
	r := m.drawRange().Range().Pages(page)
	for _, p := range within(r) {
		m.mapped[p] = false
	}
	if rapid.Bool().Draw(m.t, "told") {
		m.forget(r)
		for _, q := range m.waiting {
			q.gone = q.gone || q.sge.Range().Overlaps(r)
		}
		m.p.Gone(r)
	}
	m.look()
}

func (m *model) mapAgain(*rapid.T) {
	for _, p := range within(m.drawRange().Range()) {
		m.mapped[p] = true
	}
}

// look takes what completed and sees that it was right to, and that the calls
// that began are such as may begin.
func (m *model) look() {
	t := m.t
	for _, r := range m.waiting {
		for _, p := range within(r.sge.Range()) {
			if w, ok := m.warm[p]; ok && w.serves(r.sge.LKey, r.write) {
				r.ready[p] = true
			}
			r.unmap = r.unmap || !m.mapped[p]
		}
	}
	before := maps.Clone(m.waiting)
	var got [16]hca.WC
	for {
		n, err := m.q.Poll(got[:])
		require.NoError(t, err)
		if n == 0 {
			break
		}
		for _, w := range got[:n] {
			r := m.waiting[w.ID]
			require.NotNil(t, r, "request %d completes once", w.ID)
			delete(m.waiting, w.ID)
			switch {
			case w.Status == hca.WCSuccess:
				require.NoError(t, w.Err)
				for _, p := range within(r.sge.Range()) {
					require.True(t, r.ready[p], "request %d of %v: page %d was never ready", w.ID, r.sge.Range(), p)
				}
			case w.Status == hca.WCWRFlushErr:
				require.ErrorIs(t, w.Err, hca.ErrBadAddress)
				require.True(t, r.gone, "request %d of %v: its memory is there", w.ID, r.sge.Range())
			case errors.Is(w.Err, hca.ErrAgain):
				require.Greater(t, r.refused, m.cfg.Retries)
			default:
				require.ErrorIs(t, w.Err, hca.ErrBadAddress)
				require.True(t, r.unmap, "request %d of %v: its memory was there all the time", w.ID, r.sge.Range())
			}
		}
	}
	m.lookAtCalls(before)
	m.lookAtWarmth()
}

func (m *model) lookAtCalls(asked map[uint64]*posted) {
	t := m.t
	m.dev.mu.Lock()
	defer m.dev.mu.Unlock()
	for id, c := range m.dev.calls {
		if m.flying[id] != nil {
			continue
		}
		m.made++
		require.True(t, registered[c.sge.LKey].Contains(c.sge.Range()), "%v is not inside the registration", c.sge.Range())
		for _, p := range within(c.sge.Range()) {
			wanted := false
			for _, r := range asked {
				wanted = wanted || r.sge.LKey == c.sge.LKey && r.write == c.write && slices.Contains(within(r.sge.Range()), p)
			}
			require.True(t, wanted, "nobody asked for page %d", p)
			for _, o := range m.flying {
				require.NotContains(t, within(o.call.sge.Range()), p, "two calls share a page")
			}
		}
		m.flying[id] = &underWay{call: c}
	}
	require.Equal(t, len(m.dev.made), m.made, "calls that are over before they are seen")
	require.LessOrEqual(t, len(m.flying), m.cfg.InFlight)
	if len(m.waiting) > 0 {
		require.NotEmpty(t, m.flying, "requests wait for nothing")
	}
}

func (m *model) lookAtWarmth() {
	got := map[uint64]warmPage{}
	w := m.p.mu.warm
	parts := 0
	for _, i := range w.lru.Keys() {
		b, _ := w.lru.Peek(i)
		require.NotEmpty(m.t, b.parts, "an empty block")
		parts += len(b.parts)
		for _, p := range b.parts {
			require.NotZero(m.t, p.warm, "an empty part")
			for bs := p.warm; bs != 0; bs &= bs - 1 {
				bit := bs & -bs
				n := i*blockPages + uint64(bits.TrailingZeros64(bs))
				require.NotContains(m.t, got, n, "a page for two keys")
				got[n] = warmPage{p.lkey, p.write&bit != 0, p.fresh&bit != 0}
			}
		}
	}
	require.Equal(m.t, w.parts, parts)
	require.Equal(m.t, m.warm, got)
	n, bytes := m.outstanding()
	s := m.p.Stats()
	require.Equal(m.t, [...]uint64{m.warmed, m.useful, m.useless}, [...]uint64{s.WarmedPages, s.UsefulPages, s.UselessPages})
	require.Equal(m.t, s.WarmedPages, s.UsefulPages+s.UselessPages+uint64(s.UnusedPages))
	require.Equal(m.t, s.Requests, s.Warm+s.Done+s.Failed+s.Flushed+uint64(s.Outstanding))
	require.Equal(m.t, n, s.Outstanding)
	require.Equal(m.t, bytes, s.OutstandingBytes)
	require.Equal(m.t, len(m.warm), s.WarmPages)
	require.Equal(m.t, len(m.flying), s.InFlight)
}

func TestPrefetcherAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := PrefetchConfig{
			InFlight:    rapid.IntRange(1, 3).Draw(t, "InFlight"),
			MaxRequests: rapid.IntRange(1, 12).Draw(t, "MaxRequests"),
			MaxBytes:    60 * page,
			MaxMerge:    rapid.Uint64Range(1, 30*page).Draw(t, "MaxMerge"),
			MaxWarm:     1 << 30,
			Retries:     2,
		}
		m := &model{t: t, cfg: cfg, dev: newScripted(), mapped: map[uint64]bool{}, warm: map[uint64]warmPage{},
			waiting: map[uint64]*posted{}, flying: map[uint64]*underWay{}}
		for p := range uint64(200) {
			m.mapped[p] = true
		}
		var err error
		m.p, err = newPrefetcher(m.dev, cfg)
		require.NoError(t, err)
		close(m.p.done)
		m.q, err = NewQueue(64)
		require.NoError(t, err)
		t.Repeat(map[string]func(*rapid.T){
			"post": m.post, "post more": m.post, "end": m.end, "end more": m.end,
			"used": m.used, "discard": m.discard, "unmap": m.unmap, "map": m.mapAgain,
		})
		for steps := 0; len(m.flying) > 0; steps++ {
			require.Less(t, steps, 200, "it does not come to an end")
			m.endCall(slices.Sorted(maps.Keys(m.flying))[0], false)
		}
		require.Empty(t, m.waiting)
		require.NoError(t, m.p.Close())
	})
}
