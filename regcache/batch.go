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

// hitBatch is the hit of hit.go with the steps in the same order, steps 3 and 4
// done for all before 5 and 6 are done once: what these prove holds for every
// reference that was taken before them.
func (c *Cache) hitBatch(gs []hca.Range, a hca.Access, out []*Region) bool {
	g := c.counter.Load()
	settled := g == c.applied.Load()
	domains, need := uint32(0), checkNothing
	n := 0
	for ; n < len(gs); n++ {
		addr, end := gs[n].Addr, gs[n].End()
		if end <= addr {
			break
		}
		r := c.index.find(addr, end, a, maxProbes)
		if r == nil {
			break
		}
		if w := r.state.Add(stHit + stRef); w&stHitRare != 0 && !c.hitRare(r, w) {
			break
		}
		domains, need = domains|r.domains, max(need, r.check)
		out[n] = r
	}
	if n == len(gs) && c.omit == 0 && (need == checkNothing ||
		settled && (need == checkCounter || !c.monitor.UnderWay(domains)) && c.counter.Load() == g) {
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
