package regcache

import (
	"fmt"
	"math"
	"slices"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"example.com/holdfast/hca"
)

type modelStepKind uint8

const (
	stNothing modelStepKind = iota
	stGet
	stGetBytes
	stRelease
	stBatch
	stList
	stView
	stViewBytes
	stViewRelease
	stViewDrop
	stViewClose
	stPost
	stPostBytes
	stPostHeld
	stPoll
	stQueueClose
	stEvent
	stPlan     // what the backend does in one of its next calls
	stPlanDrop // the next deregistration fails
	stUnderWay // events are, or are no more
	stTrim
	stFlush
	stInvalidate
	stSnapshot
	stBadInput
	stReleaseTwice
	stClose
	stReopen // a new cache after one that was closed
	stepKinds
)

var stepNames = [stepKinds]string{"stNothing", "stGet", "stGetBytes", "stRelease", "stBatch", "stList", "stView", "stViewBytes", "stViewRelease",
	"stViewDrop", "stViewClose", "stPost", "stPostBytes", "stPostHeld", "stPoll", "stQueueClose", "stEvent", "stPlan", "stPlanDrop", "stUnderWay",
	"stTrim", "stFlush", "stInvalidate", "stSnapshot", "stBadInput", "stReleaseTwice", "stClose", "stReopen"}

// modelStep is one step.
type modelStep struct {
	kind       modelStepKind
	a, b, c, d uint8
}

func (s modelStep) String() string {
	return fmt.Sprintf("%s(%d,%d,%d,%d)", stepNames[s.kind], s.a, s.b, s.c, s.d)
}

// modelWeights are the kinds, each as often as it is to come; a power of two.
var modelWeights = Spread(map[modelStepKind]int{stGet: 12, stGetBytes: 3, stRelease: 6, stBatch: 2, stList: 2, stView: 6, stViewBytes: 1, stViewRelease: 4,
	stViewDrop: 1, stViewClose: 1, stPost: 3, stPostBytes: 1, stPostHeld: 1, stPoll: 2, stQueueClose: 1, stEvent: 4, stPlan: 3, stPlanDrop: 1, stUnderWay: 1,
	stTrim: 1, stFlush: 1, stInvalidate: 1, stSnapshot: 1, stBadInput: 1, stReleaseTwice: 1, stClose: 2, stReopen: 1}, stepKinds, 1<<6)

func drawModelStep(t *rapid.T) modelStep {
	k, n := modelWeights[DrawBits(t, 6)], DrawNumbers(t)
	return modelStep{k, n[0], n[1], n[2], n[3]}
}

// rangeOf is some bytes of pages that matter, now and then not whole ones.
func (g *modelRig) rangeOf(s modelStep) hca.Range {
	page, pages := uint64(s.a)%37, []uint64{1, 1, 1, 2, 3, 5, 9}[s.b%7]
	r := at(page, pages)
	if s.b/7%10 == 9 {
		r.Addr = hca.RangeOf(g.buf).Addr + page%8*pg
	}
	if s.c%2 != 0 {
		r.Addr += 100
		r.Len -= min(100+uint64(s.c/2)*64, r.Len-1)
	}
	return r
}

func (g *modelRig) bytesOf(s modelStep) []byte {
	from := (int(s.a)<<8 | int(s.b)) % (8 * pg)
	return g.buf[from:min(len(g.buf), from+1+int(s.c)*48)]
}

var modelAccess = []hca.Access{hca.LocalRead, hca.LocalWrite, hca.RemoteRead, hca.LocalWrite | hca.RemoteWrite, hca.LocalWrite | hca.RemoteAtomic}

func (s modelStep) access() hca.Access { return modelAccess[int(s.d)%len(modelAccess)] }

// give releases a Region that the program has.
func (g *modelRig) give(r *modelRegion) {
	r.mine--
	g.m.release(r)
	r.region.Release()
}

func (g *modelRig) get(t require.TestingT, r hca.Range, a hca.Access, bytes []byte) bool {
	if g.m.vague(r, a) {
		return false
	}
	hit, made, wantErr := g.m.look(r, a, bytes != nil)
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
		return true
	}
	require.NoError(t, err)
	g.answer(t, hit, made, got).mine++
	return true
}

// step does a step, and reports whether it found what it needs.
func (g *modelRig) step(t require.TestingT, s modelStep) bool {
	m := g.m
	v := &g.views[s.d%2]
	switch s.kind {
	case stGet:
		return g.get(t, g.rangeOf(s), s.access(), nil)
	case stGetBytes:
		b := g.bytesOf(s)
		return g.get(t, hca.RangeOf(b), s.access(), b)
	case stRelease:
		g.all = slices.DeleteFunc(g.all, func(r *modelRegion) bool { return r.refs == 0 })
		var mine []*modelRegion
		for _, r := range g.all {
			if r.mine > 0 {
				mine = append(mine, r)
			}
		}
		if len(mine) == 0 {
			return false
		}
		g.give(mine[int(s.a)%len(mine)])
	case stBatch:
		var rs []hca.Range
		page, pages := uint64(s.a)%37, 1+uint64(s.b)%3
		for range 2 + s.b/3%3 {
			r := at(page, pages)
			if s.c%2 != 0 {
				r.Addr += 100
				r.Len -= 100 + uint64(s.c/2)
			}
			rs = append(rs, r)
			page += pages + uint64(s.c)/2%3
		}
		return g.batch(t, rs, s.access())
	case stList:
		return g.list(t, g.rangeOf(s), s.access(), pg*(1+uint64(s.d/5)%3))
	case stView:
		return g.viewGet(t, v, g.rangeOf(s), s.access(), nil)
	case stViewBytes:
		b := g.bytesOf(s)
		return g.viewGet(t, v, hca.RangeOf(b), s.access(), b)
	case stViewRelease:
		return g.viewRelease(v, s.a)
	case stViewDrop:
		if v.v == nil {
			return false
		}
		v.drop(m)
		v.v.Drop()
	case stViewClose:
		if v.v == nil {
			return false
		}
		g.viewClose(t, v)
	case stPost:
		return g.post(t, g.rangeOf(s), s.access(), nil)
	case stPostBytes:
		b := g.bytesOf(s)
		return g.post(t, hca.RangeOf(b), s.access(), b)
	case stPostHeld:
		return g.postHeld(t, g.rangeOf(s), at(uint64(s.c)%37, 1), s.access(), s.d&1 != 0)
	case stPoll:
		return g.poll(t, 1+int(s.a)%modelDepth)
	case stQueueClose:
		return g.closeQueue(t)
	case stEvent:
		if m.closed {
			return false
		}
		e := hca.Event{Range: g.rangeOf(s), Cause: []hca.Cause{hca.CauseUnmap, hca.CauseRemap, hca.CauseDiscard, hca.CauseOwner}[s.d%4]}
		switch s.d / 4 % 20 {
		case 18:
			e.Cause = hca.CauseLost // everything, whatever range it names
		case 19:
			e.Range.Len = 0
		}
		m.event(e.Range, e.Cause == hca.CauseLost)
		g.mon.mu.Lock()
		g.mon.events = append(g.mon.events, e)
		g.mon.mu.Unlock()
		g.mon.counter.Add(hca.CounterStep)
		g.c.wake()
	case stPlan:
		call := modelCall{adapter: int(s.d / 5)}
		switch s.d % 5 {
		case 0:
			call.err = hca.ErrNoKeys
		case 1:
			call.err = &hca.OpError{Op: "register", Err: hca.ErrNoMemory}
		case 2:
			call.err = errModel
		case 3:
			e := g.rangeOf(s)
			call.event = &e
		}
		m.calls = append(m.calls, call)
		g.calls = append(g.calls, call)
	case stPlanDrop:
		if slices.Max(m.leaked) > 0 && m.keys > 0 {
			return false // all keys would be leaked in the end
		}
		m.failDrops++
		g.failDrops.Add(1)
	case stUnderWay:
		m.underWay = !m.underWay
		g.mon.underWay.Store(m.underWay)
	case stTrim:
		n := pg * uint64(s.a%9)
		var want uint64
		for want < n {
			r := m.evictOldest()
			if r == nil {
				break
			}
			want += r.pinned
		}
		require.Equal(t, want, g.c.Trim(n))
	case stFlush:
		if s.a%4 > 0 {
			return false // not so often
		}
		want := 0
		for ; m.evictOldest() != nil; want++ {
		}
		require.Equal(t, want, g.c.Flush())
	case stInvalidate:
		r := g.rangeOf(s)
		before := len(m.loose)
		m.want.Events++
		m.invalidate(r, true)
		require.Equal(t, len(m.loose)-before, g.c.Invalidate(r))
	case stSnapshot:
		m.lookAtAll()
		require.Len(t, g.c.Snapshot(), m.regions())
	case stBadInput:
		for r, a := range map[hca.Range]hca.Access{{}: 0, {Addr: math.MaxUint64, Len: 2}: 0, at(0, 1): hca.RemoteWrite, at(1, 1): hca.OnDemand} {
			if len(m.candidates(r, a)) > 0 {
				continue
			}
			_, err := g.c.Get(r, a)
			require.ErrorIs(t, err, hca.ErrInvalid)
		}
	case stReleaseTwice:
		if len(m.kept) == 0 {
			return false
		}
		r := m.kept[int(s.a)%len(m.kept)]
		if r.refs > 0 {
			return false
		}
		require.Panics(t, r.region.Release)
	case stClose:
		if s.a%4 > 0 {
			return false // not so often
		}
		for i := range g.views {
			if v := &g.views[i]; v.v != nil && s.b%2 == 0 { // else it is busy
				for g.viewRelease(v, 0) {
				}
				g.viewClose(t, v)
			}
		}
		if s.b%2 == 0 {
			for _, r := range g.all {
				for r.mine > 0 {
					g.give(r)
				}
			}
			g.closeQueue(t)
		}
		g.close(t)
	case stReopen:
		if !m.closed {
			return false
		}
		g.closeQueue(t)
		g.open(t)
	}
	return true
}
