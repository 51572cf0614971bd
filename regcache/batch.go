package regcache

import (
	"fmt"

	"example.com/holdfast/hca"
)

// GetBatch is Get for each of gs, with one look at the counter and at most one
// probe for all that are cached: for scatter lists. The Regions are stored in
// out, which must be as long as gs, in the same order; each is to be released.
// Two may be the same Region. All are had or none: if one fails, the others are
// released, and the error says which it was. Errors as Get, and hca.ErrInvalid
// if out is too short.
func (c *Cache) GetBatch(gs []hca.Range, a hca.Access, out []*Region) error {
	if len(out) < len(gs) {
		return &hca.OpError{Op: "get batch", Detail: fmt.Sprintf("room for %d Regions, %d wanted", len(out), len(gs)), Err: hca.ErrInvalid}
	}
	if c.hitBatch(gs, a, out) {
		return nil
	}
	for i, g := range gs {
		r, err := c.Get(g, a)
		if err != nil {
			for _, r := range out[:i] {
				r.Release()
			}
			clear(out[:i])
			return fmt.Errorf("get batch: %d of %d %v: %w", i+1, len(gs), g, err)
		}
		out[i] = r
	}
	return nil
}

// hitBatch is the hit of hit.go, done for all before the probe is asked once, and
// the counter of foreign memory is looked at again: what these prove holds for
// every reference that was taken before them.
func (c *Cache) hitBatch(gs []hca.Range, a hca.Access, out []*Region) bool {
	w0 := &c.words[0]
	g0 := w0.counter.Load()
	settled0 := g0 == w0.applied.Load()
	domains, probe := uint32(0), false
	n := 0
	for ; n < len(gs) && c.omit == 0; n++ {
		addr, end := gs[n].Addr, gs[n].End()
		if end <= addr {
			break
		}
		r := c.index.find(addr, end, a, maxProbes)
		if r == nil {
			break
		}
		r.state.Add(stHit + stRef)
		settled := r.check == checkNothing || r.check == checkProbe && settled0 || r.check == checkCounter && c.words[r.word].settled()
		if s := r.state.Load(); s&stHitRare != 0 && !c.hitRare(r, s) {
			break
		}
		if !settled {
			c.undoHit(r)
			break
		}
		domains, probe = domains|r.domains, probe || r.check == checkProbe
		out[n] = r
	}
	if n == len(gs) && (!probe || !c.monitor.UnderWay(domains) && w0.counter.Load() == g0) {
		for _, r := range out[:n] {
			r.traceGet()
		}
		return true
	}
	for _, r := range out[:n] {
		c.undoHit(r)
	}
	clear(out[:n])
	return false
}
