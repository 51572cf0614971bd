package regcache

import (
	"fmt"
	"sync"

	"example.com/holdfast/hca"
)

// List is several Regions that together cover a range which is too long for one
// registration. It is one holder's own: its methods are not to be called
// concurrently.
type List struct {
	parts []*Region
}

// ListConfig says how GetList cuts. The zero value is sensible.
type ListConfig struct {
	// Piece is the longest piece, bytes; a multiple of the backend's page size.
	// 0, or more than the backend can register at once: what it can.
	Piece uint64
	// Parallel is how many pieces are registered at the same time. 0: 1. Cold
	// memory is mostly faulting pages in, which several threads do faster.
	Parallel int
}

// GetList is Get for ranges of any length: where the backend cannot register
// all of g at once it is cut at multiples of the piece's length, so that
// requests that overlap share pieces. All of it is registered or nothing: if
// one piece fails, the others are released and the error says which piece it
// was. Errors as Get.
func (c *Cache) GetList(g hca.Range, a hca.Access, cfg ListConfig) (*List, error) {
	if !g.Valid() {
		return nil, c.badRange(g)
	}
	if r := c.hit(g.Addr, g.End(), a, maxProbes); r != nil {
		r.traceGet()
		return &List{parts: []*Region{r}}, nil
	}
	piece := cfg.Piece
	if piece%c.info.PageSize != 0 {
		return nil, &hca.OpError{Op: "get list", Range: g, Detail: fmt.Sprintf("ListConfig.Piece is %d, not whole pages of %d", piece, c.info.PageSize), Err: hca.ErrInvalid}
	}
	if most := c.info.MaxLen &^ (c.info.PageSize - 1); piece == 0 || most != 0 && piece > most {
		piece = most
	}
	if piece == 0 || g.Pages(c.info.PageSize).Len <= piece {
		r, err := c.Get(g, a)
		if err != nil {
			return nil, err
		}
		return &List{parts: []*Region{r}}, nil
	}
	var cuts []hca.Range
	for at := g.Addr; at < g.End(); {
		n := min(piece-at%piece, g.End()-at)
		cuts = append(cuts, hca.Range{Addr: at, Len: n})
		at += n
	}
	l := &List{parts: make([]*Region, len(cuts))}
	errs := make([]error, len(cuts))
	next := make(chan int, len(cuts))
	for i := range cuts {
		next <- i
	}
	close(next)
	var wg sync.WaitGroup
	for range max(1, min(cfg.Parallel, len(cuts))) {
		wg.Go(func() {
			for i := range next {
				l.parts[i], errs[i] = c.Get(cuts[i], a)
			}
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			l.Release()
			return nil, fmt.Errorf("get list: piece %d of %d %v: %w", i+1, len(cuts), cuts[i], err)
		}
	}
	return l, nil
}

// Regions are the parts, in the order of their addresses. Neighbours may be the
// same Region, or overlap.
func (l *List) Regions() []*Region { return l.parts }

// SGEs appends to out the elements that describe g, which must be inside the
// List, in order; else it panics.
func (l *List) SGEs(g hca.Range, out []hca.SGE) []hca.SGE {
	at := g.Addr
	for _, r := range l.parts {
		if at >= r.end || at < r.start {
			continue
		}
		n := min(r.end, g.End()) - at
		out = append(out, r.SGERange(hca.Range{Addr: at, Len: n}))
		if at += n; at == g.End() {
			return out
		}
	}
	panic("regcache: SGEs of " + g.String() + " outside the List")
}

// Release gives all parts back.
func (l *List) Release() {
	for _, r := range l.parts {
		if r != nil {
			r.Release()
		}
	}
	l.parts = nil
}
