package regcache

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"unsafe"

	"example.com/holdfast/hca"
)

// flight is one registration under way.
//
// The order is: watch, then register, then publish. The flight is in
// Cache.flying before the range is watched, so every event that is applied from
// then on and touches the range marks it. Published is only, under Cache.mu,
// what no event has touched, with every event applied up to this moment and the
// counter of the memory settled: the next event that touches it will find the
// Region in the index.
//
// Of foreign memory that is not all there is. An operation may have begun, before
// the flight or during it, and not be counted yet: then what was registered may be
// older than what is mapped now, or not be watched. Publishing does not ask for
// that, because every hit does (hit.go), and answers for each way it can go: until
// the operation is counted its hit fails; when it is counted it is applied, and
// then it either marked the flight or found the Region in the index. So to ask the
// kernel here as well would prove nothing that the caller gets, and would be a
// third of what such a miss costs. The caller himself needs no proof: see below.
//
// A Region that takes the place of neighbours is the exception (plan.merge): they
// would be given up for one that is about to die, perhaps because of memory that
// the caller has nothing to do with. There the probe is made.
//
// A range that was touched is registered again, a few times; then the last
// registration is used once and dropped. That is right for the caller: it was
// made within his call, of memory that he says is his for now. It is not right
// for anybody else: who joined a flight takes what was published, or makes his
// own.
type flight struct {
	reg    hca.Range      // what the caller asked for, in whole pages as a rule
	access hca.Access     // what the caller asked for
	union  hca.Access     // that, and what others have of the same range: see lookLocked
	held   unsafe.Pointer // Go heap memory to keep alive, or nil
	once   hca.Unkept     // a reason known beforehand not to keep it
	shared bool           // others may join: see sharedLocked
	err    error          // set before done is closed

	// guarded by Cache.mu
	done    chan struct{} // closed at the end; made by the first who joins
	at      int           // its place in Cache.flying
	now     hca.Range     // what is being registered
	touched bool          // an event touched it since the attempt began
	owner   bool          // its owner called Invalidate for it
}

// How often a range that was touched is registered again in the hope of
// keeping it.
const maxAttempts = 3

// How often a registration that the backend has no room for is tried again
// because others gave something back, which others may have taken again.
const maxRetries = 1000

// flyLocked makes a registration as the flight says and answers with its Region.
// It is called with Cache.mu held and returns with it held; in between it lets go
// of it.
func (c *Cache) flyLocked(as flight) (*Region, error) {
	f := c.spare // of a flight that nobody joined, so nobody else knows it
	if c.spare = nil; f == nil {
		f = new(flight)
	}
	*f = as
	c.count.misses++
	f.at = len(c.flying)
	c.flying = append(c.flying, f)
	r, err := c.tryPlansLocked(f)
	last := len(c.flying) - 1
	moved := c.flying[last]
	c.flying[f.at], moved.at = moved, f.at
	c.flying[last] = nil
	c.flying = c.flying[:last]
	if err != nil {
		c.count.failures++
	}
	f.err = err
	c.unshareLocked(f)
	if f.done == nil {
		*f = flight{}
		c.spare = f
	}
	return r, err
}

// sharedLocked is the registration of reg under way that others may join, nil if
// there is none. Those under way are as many as there are Gets that miss at this
// moment, few as a rule, so they are looked through: a map of them costs each miss
// more. Cache.mu is held.
func (c *Cache) sharedLocked(reg hca.Range) *flight {
	for _, f := range c.flying {
		if f.shared && f.reg == reg {
			return f
		}
	}
	return nil
}

// unshareLocked lets those go who wait for the flight, to look for themselves.
// Cache.mu is held.
func (c *Cache) unshareLocked(f *flight) {
	if f.shared {
		f.shared = false
		if f.done != nil {
			close(f.done)
		}
	}
}

// plan is one way to register for a flight: which range, for which access.
type plan struct {
	reg    hca.Range
	access hca.Access
	merge  bool // it takes the place of neighbours
	last   bool // if it cannot be kept it is used once; others are given up then
	keep   bool // it may be kept, so room is made for it
}

// tryPlansLocked tries the widest registration first, and at last exactly what
// was asked for: what others want besides, or have nearby, must not make a
// request fail, nor keep it from being kept. Cache.mu is held at the beginning
// and at the end.
func (c *Cache) tryPlansLocked(f *flight) (*Region, error) {
	exact := plan{reg: f.reg, access: f.access, last: true}
	if f.once != hca.KeptAllRight {
		return c.attempt(f, exact)
	}
	union := plan{reg: f.reg, access: f.union}
	if f.held == nil && c.monitor != nil {
		if reg, access, ok := c.mergeLocked(f.reg, union.access); ok {
			if r, err := c.attempt(f, plan{reg: reg, access: access, merge: true}); r != nil && err == nil {
				c.count.merges++
				return r, nil
			}
		}
	}
	if union.access != f.access {
		if r, err := c.attempt(f, union); r != nil && err == nil {
			return r, nil
		}
	}
	return c.attempt(f, exact)
}

// attempt registers by the plan until it can be published, or often enough. A
// plan that is not the last is tried once, and answered with nil if it was not
// to be kept. Cache.mu is held at the beginning and at the end.
func (c *Cache) attempt(f *flight, p plan) (*Region, error) {
	for n := 1; ; n++ {
		f.now, f.touched, f.owner = p.reg, false, false
		w := c.watchLocked(f, p.reg)
		keep := f.once == hca.KeptAllRight && w.Why == hca.KeptAllRight
		if !keep {
			c.unshareLocked(f) // of no use to anybody else
		}
		if !p.last && !keep || p.merge && !c.fitsLocked(1, c.pinnedBytes(p.reg)) {
			return nil, nil // a merge is not worth an eviction
		}
		p.keep = keep
		r, fits, err := c.registerLocked(f, p, w)
		if r == nil {
			return nil, err
		}
		r.word = c.wordLocked(w)
		why := f.once
		switch {
		case !keep && why == hca.KeptAllRight:
			why = w.Why
		case keep && !fits:
			why = hca.UnkeptLimit
		case keep:
			var done bool
			if why, done = c.publishLocked(f, r, p.merge); done {
				return r, nil
			}
		}
		// Not mapped throughout, or touched meanwhile: worth another try.
		again := (why == hca.UnkeptNotMapped || why == hca.UnkeptUnsettled) && f.once == hca.KeptAllRight && n < maxAttempts
		if again || !p.last {
			c.count.redone++
			r.cold.end = endRedone
			r.state.Store(stDead | stClaimed)
			c.dieLocked(r)
			c.mu.Unlock()
			c.deregister([]*Region{r})
			runtime.Gosched()
			c.mu.Lock()
			if p.last {
				continue
			}
			return nil, nil
		}
		r.cold.why, r.cold.end = why, endOnce
		r.state.Store(stDead | stRef)
		c.loose[r] = struct{}{}
		c.count.usedOnce[why]++
		if c.log.debug {
			c.noteLocked("used once", r.Range(), slog.String("why", why.String()))
		}
		return r, nil
	}
}

// watchLocked finds out what a kept registration of the range would need. It lets go
// of Cache.mu while it asks the monitor.
func (c *Cache) watchLocked(f *flight, g hca.Range) hca.Watch {
	switch {
	case f.once != hca.KeptAllRight:
		return hca.Watch{Why: f.once}
	case f.held != nil || c.info.Follows:
		return hca.Watch{Kind: hca.MemHeld}
	case c.monitor == nil:
		return hca.Watch{Why: hca.UnkeptNoSource}
	}
	c.mu.Unlock()
	w := c.monitor.Watch(g)
	c.mu.Lock()
	if w.Kind == hca.MemUnknown && w.Why == hca.KeptAllRight {
		w.Why = hca.UnkeptNoSource
	}
	return w
}

// registerLocked has the backend register by the plan, and makes room within the
// limits first if it may be kept; fits is false if there is none. Then the last plan
// is registered all the same, and others are answered with nil. The answer is a
// Region that stands nowhere yet, made where nobody waits for the lock. If the
// backend runs out, idle Regions are given back and those that are dying waited
// for, as long as there are any. Cache.mu is held at the beginning and at the end,
// never in between while the backend works.
func (c *Cache) registerLocked(f *flight, p plan, w hca.Watch) (r *Region, fits bool, err error) {
	g, a := p.reg, p.access
	bytes := c.pinnedBytes(g)
	var victims []*Region
	if p.keep {
		victims = c.makeRoomLocked(1, bytes)
	}
	for _, v := range victims { // they are as good as gone: count them out for the question
		c.usage.regions--
		c.usage.bytes -= v.pinned()
	}
	fits = c.fitsLocked(1, bytes)
	for _, v := range victims {
		c.usage.regions++
		c.usage.bytes += v.pinned()
	}
	if !fits && !p.last {
		c.mu.Unlock()
		c.deregister(victims)
		c.mu.Lock()
		return nil, false, nil
	}
	c.usage.regions++
	c.usage.bytes += bytes
	for tries := 0; ; tries++ {
		back := c.count.deregistrations + uint64(len(victims))
		c.mu.Unlock()
		c.deregister(victims)
		var mr *hca.MR
		mr, err = c.backend.Register(g, a)
		if err == nil && (mr == nil || !mr.Range.Contains(g) || !mr.Access.Has(a)) {
			err = c.refuseShort(g, a, mr)
		}
		if err == nil {
			r = c.newRegion(f, g, w, mr)
		}
		c.mu.Lock()
		if err == nil {
			c.count.registrations++
			if c.log.debug {
				c.noteRegisteredLocked(mr)
			}
			return r, fits, nil
		}
		c.countUndoLocked(g, err)
		if p.last && (errors.Is(err, hca.ErrNoMemory) || errors.Is(err, hca.ErrNoKeys)) {
			c.applyLocked()
			if victims = c.reclaimLocked(bytes); len(victims) > 0 {
				c.count.retries++
				continue
			}
			if back != c.count.deregistrations && tries < maxRetries { // perhaps what was given back meanwhile is enough
				c.count.retries++
				continue
			}
			if c.usage.dying > 0 && tries < maxRetries {
				c.gone.Wait() // somebody deregisters: try when he has
				c.count.retries++
				continue
			}
			err = &hca.OpError{Op: "get", Device: c.info.Name, Range: g,
				Detail: fmt.Sprintf("nothing is left to give back: %d Regions with %v are in use", c.usage.regions-1, hca.Bytes(c.usage.bytes-bytes)),
				Err:    err, Hint: "release some, or raise the limit"}
		}
		c.usage.regions--
		c.usage.bytes -= bytes
		c.gone.Broadcast()
		return nil, false, err
	}
}

// refuseShort takes a registration back that does not do what was asked.
func (c *Cache) refuseShort(g hca.Range, a hca.Access, mr *hca.MR) error {
	e := &hca.OpError{Op: "get", Device: c.info.Name, Range: g, Err: hca.ErrNotSupported}
	if mr == nil {
		e.Detail = "the backend returned neither a registration nor an error"
		return e
	}
	e.Detail = fmt.Sprintf("the backend registered only %v for %v, not for %v", mr.Range, mr.Access, a)
	if err := c.backend.Deregister(mr); err != nil {
		return &undoError{cause: e, undo: err}
	}
	return e
}

// pinnedBytes is what a registration of g counts against Config.MaxBytes.
func (c *Cache) pinnedBytes(g hca.Range) uint64 {
	if c.info.Follows {
		return 0
	}
	return g.Pages(c.info.PageSize).Len
}

// newRegion makes the Region of a registration, held by the caller, who gives it its
// word when he has Cache.mu.
func (c *Cache) newRegion(f *flight, g hca.Range, w hca.Watch, mr *hca.MR) *Region {
	now := c.clock()
	r := &Region{
		start: g.Addr, end: g.End(), access: mr.Access, lkey: mr.LKey, rkey: mr.RKey,
		domains: w.Domains, kind: w.Kind, cache: c,
		cold: &cold{mr: mr, keep: f.held, born: tickOf(now), used: now},
	}
	r.cold.of = r
	switch {
	case c.info.Follows:
		// All that it covers can be used, not just what was asked for.
		r.start, r.end = mr.Range.Addr, mr.Range.End()
		r.kind, r.check, r.cold.keep = hca.MemUnknown, checkNothing, nil
	case w.Kind == hca.MemHeld:
		r.check = checkNothing
	case w.Kind == hca.MemOwned:
		r.check = checkCounter
	default:
		r.check = checkProbe
	}
	return r
}

// publishLocked puts r into the index if that is right, and says otherwise why
// not. With probe, it has to be proved besides that nothing is under way in the
// kernel. Cache.mu is held at the beginning and at the end.
func (c *Cache) publishLocked(f *flight, r *Region, probe bool) (hca.Unkept, bool) {
	for try := 0; ; try++ {
		c.applyLocked()
		if f.touched && (r.check != checkNothing || f.owner) {
			return hca.UnkeptUnsettled, false
		}
		if r.check == checkNothing || c.words[r.word].settled() && (!probe || c.quiet(r)) {
			break
		}
		if try == maxTries {
			return hca.UnkeptUnsettled, false
		}
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
	}
	c.dropRedundantLocked(r)
	r.state.Store(stRef | stCold | r.probeBit())
	r.cold.inIndex = true
	c.index.insert(r)
	c.recency.add(r)
	return hca.KeptAllRight, true
}

// dropRedundantLocked takes out what the new Region r does better: Regions
// inside it that allow nothing more and need no less checking. So however users
// alternate, a range ends up with one Region, and what overlaps does not pile
// up.
func (c *Cache) dropRedundantLocked(r *Region) {
	c.scratch = c.index.overlapping(r.Range(), c.scratch[:0])
	for _, old := range c.scratch {
		if old.cold.inIndex && r.Range().Contains(old.Range()) && r.access.Has(old.access) && r.check <= old.check &&
			len(c.exports[old]) == 0 { // what was exported has to be found when its memory goes
			c.count.replaced++
			old.cold.end = endReplaced
			c.removeLocked(old)
		}
	}
	clear(c.scratch)
}
