package regcache

import (
	"errors"
	"fmt"
	"slices"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// modelView is a View and the model of it: eight slots, each with a Region or
// not, of which some are out.
type modelView struct {
	v      *View // nil: not open
	last   int
	recall uint64         // of the cache's, that was heeded
	hits   uint64         // not told to the cache yet
	table  [viewPages]int // the slot to look in first
	slots  [viewSlots]modelSlot
	loose  []*modelRegion // out, and not in a slot
}

type modelSlot struct {
	r    *modelRegion
	live bool // found by look-up
	out  int
}

// out are the Regions that the endpoint has.
func (v *modelView) out() (out []*modelRegion) {
	for _, s := range v.slots {
		for range s.out {
			out = append(out, s.r)
		}
	}
	return append(out, v.loose...)
}

func (v *modelView) empty(m *cacheModel, s *modelSlot) {
	s.live = false
	if s.r != nil && s.out == 0 {
		r := s.r
		s.r = nil
		m.release(r)
	}
}

func (v *modelView) drop(m *cacheModel) {
	for i := range v.slots {
		if s := &v.slots[i]; s.out == 0 || !s.r.kept {
			v.empty(m, s)
		}
	}
	m.want.Hits += v.hits
	v.hits = 0
}

// hit looks into the slots, in the order in which the View does: that which the table
// names alone as long as there is no reason to look further.
func (v *modelView) hit(m *cacheModel, g hca.Range, a hca.Access) *modelRegion {
	fits := func(s modelSlot) bool { return s.live && s.r.g.Contains(g) && s.r.access.Has(a) }
	take := func(i int) *modelRegion {
		v.last, v.table[viewPage(g.Addr)] = i, i
		v.slots[i].out++
		v.hits++
		return v.slots[i].r
	}
	i := v.table[viewPage(g.Addr)]
	if s := v.slots[i]; fits(s) && v.recall == m.recall && s.r.check != checkProbe {
		return take(i) // and it is alive: else the View would have been asked
	}
	if v.recall != m.recall {
		v.recall = m.recall
		v.drop(m)
	}
	for i := range v.slots {
		switch s := &v.slots[i]; {
		case !fits(*s):
		case !s.r.kept:
			v.empty(m, s)
		case !m.unproved(s.r):
			return take(i)
		}
	}
	return nil
}

// keep puts a Region that the cache has just given for g into a slot.
func (v *modelView) keep(m *cacheModel, r *modelRegion, g hca.Range) {
	if r.kept {
		for n := range v.slots {
			i := (v.last + 1 + n) % viewSlots
			s := &v.slots[i]
			if s.r != nil && s.out > 0 {
				continue
			}
			v.empty(m, s)
			*s = modelSlot{r, true, 1}
			v.last = i
			v.table[viewPage(g.Addr)], v.table[viewPage(r.g.Addr)] = i, i
			return
		}
	}
	v.loose = append(v.loose, r)
}

func (v *modelView) release(m *cacheModel, r *modelRegion) {
	for i := range v.slots { // it is in one slot at most
		if s := &v.slots[i]; s.r == r && s.out > 0 {
			if s.out--; !r.kept {
				v.empty(m, s)
			}
			return
		}
	}
	i := slices.Index(v.loose, r)
	v.loose = slices.Delete(v.loose, i, i+1)
	m.release(r)
}

// openView makes the View if it is not open.
func (g *modelRig) openView(t require.TestingT, v *modelView) bool {
	if v.v != nil {
		return true
	}
	real, err := g.c.NewView("endpoint")
	if g.m.closed {
		require.ErrorIs(t, err, hca.ErrClosed)
		return false
	}
	require.NoError(t, err)
	*v = modelView{v: real, recall: g.m.recall}
	g.m.views++
	return true
}

// viewGet gets through a View.
func (g *modelRig) viewGet(t require.TestingT, v *modelView, r hca.Range, a hca.Access, bytes []byte) bool {
	m := g.m
	if m.vague(r, a) || !g.openView(t, v) {
		return false
	}
	want := v.hit(m, r, a)
	var cand []*modelRegion
	var wantErr error
	inView := want != nil
	if !inView {
		cand = m.candidates(r, a)
		if len(cand) == 0 || m.unproved(cand[0]) {
			if len(cand) > 0 {
				cand[0].warm = true
			}
			v.drop(m) // before the cache is asked to register
			cand, want, wantErr = m.look(r, a, bytes != nil)
		}
	}
	var got *Region
	var err error
	if bytes != nil {
		got, err = v.v.GetBytes(bytes, a)
	} else {
		got, err = v.v.Get(r, a)
	}
	if wantErr != nil {
		require.ErrorIs(t, err, wantErr)
		return true
	}
	require.NoError(t, err)
	if inView {
		require.Same(t, want.region, got)
		return true
	}
	want = g.answer(t, cand, want, got)
	v.keep(m, want, r)
	return true
}

func (g *modelRig) viewRelease(v *modelView, which uint8) bool {
	out := v.out()
	if len(out) == 0 {
		return false
	}
	r := out[int(which)%len(out)]
	v.release(g.m, r)
	v.v.Release(r.region)
	return true
}

func (g *modelRig) viewClose(t require.TestingT, v *modelView) {
	inSlots := len(v.out()) - len(v.loose)
	err := v.v.Close()
	if inSlots > 0 {
		require.ErrorIs(t, err, hca.ErrBusy)
		return
	}
	require.NoError(t, err)
	v.drop(g.m)
	for _, r := range v.loose { // the View never had them
		r.mine++
	}
	require.ErrorIs(t, v.v.Close(), hca.ErrClosed)
	g.m.views--
	*v = modelView{}
}

// The queue has one worker, and each step waits until it has nothing to do: what
// it makes of a posted Get is what the Get would have been answered with then.

const modelDepth = 3

// modelOutcome is a posted Get that was done, and holds its Region.
type modelOutcome struct {
	id  uint64
	r   *modelRegion
	err error
	hit []*modelRegion // r is nil: one of these
}

// modelGate holds the adapter back in its next registration.
type modelGate struct{ entered, open chan struct{} }

func (g *modelRig) openQueue(t require.TestingT) {
	if g.q == nil {
		var err error
		g.q, err = g.c.NewQueue(QueueConfig{Depth: modelDepth, Workers: 1})
		require.NoError(t, err)
	}
}

// idle waits until the worker has ended.
func (g *modelRig) idle() {
	g.q.mu.Lock()
	defer g.q.mu.Unlock()
	for g.q.workers > 0 {
		g.q.idle.Wait()
	}
}

// done says what came of a posted Get: it is looked up in the order in which the
// model says what happened.
func (g *modelRig) outcome(t require.TestingT, o modelOutcome) {
	g.q.mu.Lock()
	d := g.q.done[len(g.queue)]
	g.q.mu.Unlock()
	require.Equal(t, o.id, d.ID)
	if o.err != nil {
		require.ErrorIs(t, d.Err, o.err)
		require.Nil(t, d.Region)
	} else {
		require.NoError(t, d.Err)
		o.r = g.answer(t, o.hit, o.r, d.Region)
	}
	g.queue = append(g.queue, o)
}

func (g *modelRig) post(t require.TestingT, r hca.Range, a hca.Access, bytes []byte) bool {
	m := g.m
	if m.vague(r, a) || !r.Valid() {
		return false
	}
	full := len(g.queue) == modelDepth
	cand := m.candidates(r, a)
	if full && len(cand) > 1 {
		return false
	}
	g.openQueue(t)
	g.id++
	post := func() error {
		var err error
		if bytes != nil {
			_, err = g.q.PostBytes(g.id, bytes, a)
		} else {
			_, err = g.q.Post(g.id, r, a)
		}
		return err
	}
	if full {
		if len(cand) > 0 { // it looks before it finds out
			cand[0].warm = true
			if !m.unproved(cand[0]) {
				cand[0].hits++
			}
		}
		require.ErrorIs(t, post(), hca.ErrQueueFull)
		return true
	}
	o := modelOutcome{id: g.id}
	o.hit, o.r, o.err = m.look(r, a, bytes != nil)
	require.NoError(t, post())
	g.idle()
	g.outcome(t, o)
	return true
}

// postHeld posts a Get that the adapter holds back, and a second one behind it
// that is canceled before its turn; the first may be canceled too.
func (g *modelRig) postHeld(t require.TestingT, first, second hca.Range, a hca.Access, cancel bool) bool {
	m := g.m
	if m.closed || len(g.queue)+2 > modelDepth || len(m.candidates(first, a))+len(m.candidates(second, a)) > 0 {
		return false
	}
	g.openQueue(t)
	gate := &modelGate{make(chan struct{}), make(chan struct{})}
	g.gate = gate
	g.id += 2
	one, err := g.q.Post(g.id-1, first, a)
	require.NoError(t, err)
	<-gate.entered
	two, err := g.q.Post(g.id, second, a)
	require.NoError(t, err)
	require.True(t, g.q.Cancel(two))
	require.False(t, g.q.Cancel(two))
	if cancel {
		require.True(t, g.q.Cancel(one))
	}
	close(gate.open)
	g.idle()
	require.False(t, g.q.Cancel(one))
	g.outcome(t, modelOutcome{id: g.id, err: ErrCanceled})
	o := modelOutcome{id: g.id - 1}
	o.hit, o.r, o.err = m.look(first, a, false)
	if o.err == nil && cancel {
		m.release(o.r)
		o.r, o.err = nil, ErrCanceled
	}
	g.outcome(t, o)
	return true
}

// poll takes outcomes out of the queue.
func (g *modelRig) poll(t require.TestingT, n int) bool {
	if g.q == nil {
		return false
	}
	out := make([]Done, n)
	n = g.q.Poll(out)
	require.Equal(t, min(len(out), len(g.queue)), n)
	for i, o := range g.queue[:n] {
		require.Equal(t, o.id, out[i].ID)
		if o.r != nil {
			require.Same(t, o.r.region, out[i].Region)
			o.r.mine++
		}
	}
	g.queue = g.queue[n:]
	return true
}

func (g *modelRig) closeQueue(t require.TestingT) bool {
	if g.q == nil {
		return false
	}
	require.NoError(t, g.q.Close())
	for _, o := range g.queue {
		if o.r != nil {
			g.m.release(o.r)
		}
	}
	_, err := g.q.Post(0, at(100, 1), 0) // nothing is ever cached there
	require.ErrorIs(t, err, hca.ErrClosed)
	g.q, g.queue = nil, nil
	return true
}

func (g *modelRig) closeEnds(t require.TestingT) {
	g.closeQueue(t)
	for i := range g.views {
		v := &g.views[i]
		for v.v != nil {
			for g.viewRelease(v, 0) {
			}
			g.viewClose(t, v)
		}
	}
}

// outOf is how often the endpoint has what is in a slot.
func (v *View) outOf(i int) int {
	out := int(v.slots[i].out)
	if v.newest != 0 && int(v.last) == i {
		out++
	}
	return out
}

// checkEnds compares what the Views hold.
func (g *modelRig) checkEnds(t require.TestingT) {
	require.Equal(t, g.m.recall, g.c.recall.Load(), "how often Views were asked")
	for i := range g.views {
		v := &g.views[i]
		if v.v == nil {
			continue
		}
		var want, have []string
		for i, s := range v.slots {
			r := (*Region)(nil)
			if s.r != nil {
				r = s.r.region
			}
			want = append(want, fmt.Sprintf("%p found %v out %d", r, s.live, s.out))
			have = append(have, fmt.Sprintf("%p found %v out %d", v.v.slots[i].r, v.v.slots[i].end != 0, v.v.outOf(i)))
		}
		require.Equal(t, want, have, "what a View holds")
	}
}

// replaces reports whether a registration of g could take the place of another,
// which is dropped in the background then: the next of several Gets would find it
// there, or not.
func (m *cacheModel) replaces(g hca.Range) bool {
	return slices.ContainsFunc(m.kept, func(r *modelRegion) bool { return g.Pages(pg).Contains(r.g) })
}

// unseen is what look foretold for a Get whose answer is not known, because the
// call that it was a part of failed: what it made, or a hit of the one candidate.
func unseen(cand []*modelRegion, made *modelRegion) *modelRegion {
	if made != nil {
		return made
	}
	r := cand[0]
	r.refs, r.hits, r.warm = r.refs+1, r.hits+1, true
	return r
}

// batch gets several ranges at once. They have no page in common, so none of
// them is answered with what was made for another.
func (g *modelRig) batch(t require.TestingT, rs []hca.Range, a hca.Access) bool {
	m := g.m
	for _, r := range rs {
		if len(m.candidates(r, a)) > 1 || m.replaces(r) {
			return false
		}
	}
	out := make([]*Region, len(rs))
	err := g.c.GetBatch(rs, a, out)
	for _, r := range rs { // first all of them are looked for, up to the first that is not there
		cand := m.candidates(r, a)
		if len(cand) == 0 {
			break
		}
		cand[0].warm = true
	}
	var got []*modelRegion
	for i, r := range rs {
		cand, made, wantErr := m.look(r, a, false)
		if wantErr != nil {
			require.ErrorIs(t, err, wantErr)
			for _, r := range got {
				m.release(r)
			}
			return true
		}
		if err != nil { // by one that comes later
			got = append(got, unseen(cand, made))
			continue
		}
		got = append(got, g.answer(t, cand, made, out[i]))
	}
	require.NoError(t, err)
	for _, r := range got {
		r.mine++
	}
	return true
}

// list gets a range in pieces, one after the other.
func (g *modelRig) list(t require.TestingT, r hca.Range, a hca.Access, piece uint64) bool {
	m := g.m
	cuts := []hca.Range{r}
	if r.Pages(pg).Len > piece {
		cuts = nil
		for at := r.Addr; at < r.End(); {
			n := min(piece-at%piece, r.End()-at)
			cuts = append(cuts, hca.Range{Addr: at, Len: n})
			at += n
		}
	}
	whole := m.candidates(r, a)
	if len(whole) > 1 {
		return false
	}
	for _, c := range cuts {
		if len(m.candidates(c, a)) > 1 || m.replaces(c) {
			return false
		}
	}
	if len(whole) == 1 {
		if whole[0].warm = true; !m.unproved(whole[0]) {
			cuts = []hca.Range{r}
		}
	}
	l, err := g.c.GetList(r, a, ListConfig{Piece: piece})
	var got []*modelRegion
	var first error
	for i, c := range cuts {
		cand, made, wantErr := m.look(c, a, false)
		if wantErr != nil {
			if first == nil {
				first = wantErr
			}
			continue
		}
		if err != nil {
			got = append(got, unseen(cand, made))
			continue
		}
		require.Len(t, l.Regions(), len(cuts))
		got = append(got, g.answer(t, cand, made, l.Regions()[i]))
	}
	if first != nil {
		require.ErrorIs(t, err, first)
		for _, r := range got {
			m.release(r)
		}
		return true
	}
	require.NoError(t, err)
	for _, r := range got {
		r.mine++
	}
	var sges []hca.SGE
	sges = l.SGEs(r, sges)
	at := r.Addr
	for _, s := range sges {
		require.Equal(t, at, s.Addr)
		at += s.Len
	}
	require.Equal(t, r.End(), at)
	return true
}

var errNotFound = errors.New("hit a Region that does not do")

// answer binds what the cache answered with to the model: it is what a miss
// made, or one of those that are hit.
func (g *modelRig) answer(t require.TestingT, hit []*modelRegion, made *modelRegion, got *Region) *modelRegion {
	require.NotNil(t, got)
	want := made
	if made == nil {
		i := slices.IndexFunc(hit, func(x *modelRegion) bool { return x.region == got })
		if i < 0 {
			require.NoError(t, errNotFound, "%v", got.Range())
		}
		want = hit[i]
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
	return want
}
