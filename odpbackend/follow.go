package odpbackend

import "example.com/holdfast/hca"

// Events is who tells that memory goes away: an intercept.Monitor, or any other
// regcache.Monitor.
type Events interface {
	Subscribe(wake func()) (hca.Feed, error)
}

// Follow has the Prefetcher hear of memory that goes away from e, until Close:
// what is unmapped or moved is Gone, what is discarded is forgotten, and if
// events were lost everything is forgotten. Close e after the Prefetcher.
// Without it memory that went away is believed to be warm until it is forgotten
// for its age; the price is a prefetch too few, never anything wrong.
//
// Errors are those of e, and ErrClosed.
func (p *Prefetcher) Follow(e Events) error {
	feed, err := e.Subscribe(p.readFeeds)
	if err != nil {
		return err
	}
	p.mu.Lock()
	if closed := p.mu.closed; closed != nil {
		p.mu.Unlock()
		_ = feed.Close() // what the caller hears is why
		return &hca.OpError{Op: "follow events", Device: p.name, Err: closed}
	}
	defer p.mu.Unlock()
	p.mu.feeds = append(p.mu.feeds, feed)
	p.readFeedsLocked() // its call may have come before the feed was there
	return nil
}

// readFeeds is what a monitor calls when there are events.
func (p *Prefetcher) readFeeds() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readFeedsLocked()
}

func (p *Prefetcher) readFeedsLocked() {
	for _, f := range p.mu.feeds {
		for n := f.Next(p.mu.events[:]); n > 0; n = f.Next(p.mu.events[:]) {
			for _, e := range p.mu.events[:n] {
				switch e.Cause {
				case hca.CauseLost:
					p.forgetLocked(hca.Whole)
				case hca.CauseDiscard:
					p.forgetLocked(e.Range)
				default:
					p.goneLocked(e.Range)
				}
			}
		}
	}
}

// Forget says that pages of r may not be ready any more. A call that is under
// way there completes as it would, and is not remembered. It is cheap where
// nothing is known of r.
func (p *Prefetcher) Forget(r hca.Range) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetLocked(r)
}

// Gone says that the memory of r is not there any more: it is forgotten, and
// requests for it that wait complete with WCWRFlushErr and hca.ErrBadAddress
// instead of being tried, so that a prefetch meant for memory that is gone
// does not bring in what is mapped there next.
func (p *Prefetcher) Gone(r hca.Range) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.goneLocked(r)
}

func (p *Prefetcher) forgetLocked(r hca.Range) {
	if r.Empty() {
		return
	}
	p.mu.warm.forget(r)
	r = p.pagesOf(r)
	for _, j := range p.mu.flying {
		if j != nil && p.pagesOf(j.sgl[0].Range()).Overlaps(r) {
			j.spoiled = true
		}
	}
}

func (p *Prefetcher) goneLocked(r hca.Range) {
	if r.Empty() {
		return
	}
	p.forgetLocked(r)
	old := p.mu.pending
	p.mu.pending = nil
	for _, j := range old {
		if !j.sge.Range().Overlaps(r) {
			p.mu.pending = append(p.mu.pending, j)
			continue
		}
		// Of a job for several requests the others stay, apart: what is left
		// of the range around them may have a hole now.
		for _, q := range j.reqs {
			one := &job{sge: q.sge, write: j.write, reqs: []request{q}, alone: true}
			if q.sge.Range().Overlaps(r) {
				p.flushLocked(one, hca.ErrBadAddress)
			} else {
				p.mu.pending = append(p.mu.pending, one)
			}
		}
	}
}
