package odpbackend

import (
	"errors"
	"slices"

	"example.com/holdfast/hca"
)

// request is what somebody posted.
type request struct {
	queue *Queue
	id    uint64
	sge   hca.SGE
}

// job is one call of the device, for one request or for several that overlap
// or touch. sge is the shortest range around all of them: every byte of it
// lies in the registration, since that is one range and the requests lie in it.
type job struct {
	sge   hca.SGE
	write bool
	reqs  []request
	tries int  // calls that ended with ErrAgain
	alone bool // nothing is to be put to it any more

	sgl     [1]hca.SGE // what the device was told: the part of sge that was cold
	spoiled bool       // part of it was forgotten while the device worked on it
}

// pagesOf is r in whole pages.
func (p *Prefetcher) pagesOf(r hca.Range) hca.Range { return r.Pages(p.page) }

// touch reports whether r and s share a page, or have pages side by side.
func (p *Prefetcher) touch(r, s hca.Range) bool {
	r, s = p.pagesOf(r), p.pagesOf(s)
	return r.Addr <= s.End() && s.Addr <= r.End()
}

// around is the shortest range that has all of r and s.
func around(r, s hca.Range) hca.Range {
	start := min(r.Addr, s.Addr)
	return hca.Range{Addr: start, Len: max(r.End(), s.End()) - start}
}

// enqueueLocked puts r to a job that waits, or behind all that wait. A request
// can join two jobs into one; they stay two then, and the second finds warm
// what the first has made so.
func (p *Prefetcher) enqueueLocked(r request, write bool) {
	for _, j := range p.mu.pending {
		if j.alone || j.write != write || j.sge.LKey != r.sge.LKey || !p.touch(j.sge.Range(), r.sge.Range()) {
			continue
		}
		u := around(j.sge.Range(), r.sge.Range())
		if u.Len > j.sge.Len && u.Len > p.cfg.MaxMerge {
			continue
		}
		j.sge.Addr, j.sge.Len = u.Addr, u.Len
		j.reqs = append(j.reqs, r)
		p.mu.count.merged++
		return
	}
	p.mu.pending = append(p.mu.pending, &job{sge: r.sge, write: write, reqs: []request{r}})
}

// takeLocked takes the oldest job that may run now, and gives it its id at the
// device; nil if there is none. What became warm while it waited completes
// here, without a call.
func (p *Prefetcher) takeLocked() (*job, uint64) {
	if p.mu.inFlight == len(p.mu.flying) {
		return nil, 0
	}
	for i := 0; i < len(p.mu.pending); {
		j := p.mu.pending[i]
		if p.busyLocked(j.sge.Range()) {
			i++
			continue
		}
		p.mu.pending = slices.Delete(p.mu.pending, i, i+1)
		cold := p.mu.warm.cold(j.sge, j.write)
		if cold.Empty() {
			p.mu.count.warm += uint64(len(j.reqs))
			p.completeLocked(j, hca.WCSuccess, nil)
			continue
		}
		j.sgl[0] = hca.SGE{Addr: cold.Addr, Len: cold.Len, LKey: j.sge.LKey}
		j.spoiled = false
		id := slices.Index(p.mu.flying, nil)
		p.mu.flying[id] = j
		p.mu.inFlight++
		return j, uint64(id)
	}
	return nil, 0
}

// busyLocked reports whether the device works on a page of r.
func (p *Prefetcher) busyLocked(r hca.Range) bool {
	r = p.pagesOf(r)
	return slices.ContainsFunc(p.mu.flying, func(j *job) bool {
		return j != nil && p.pagesOf(j.sgl[0].Range()).Overlaps(r)
	})
}

// finish ends a call of the device.
func (p *Prefetcher) finish(id uint64, status hca.WCStatus, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id >= uint64(len(p.mu.flying)) || p.mu.flying[id] == nil {
		return // of one that was given up, or none of ours
	}
	j := p.mu.flying[id]
	p.mu.flying[id] = nil
	if p.mu.inFlight--; p.mu.inFlight == 0 {
		p.calm.Broadcast()
	}
	switch {
	case err == nil:
		p.mu.count.advises++
		p.mu.count.done += uint64(len(j.reqs))
		if !j.spoiled {
			p.mu.warm.add(j.sgl[0], j.write)
		}
		p.completeLocked(j, hca.WCSuccess, nil)
	case p.mu.closed != nil:
		p.mu.count.failed += uint64(len(j.reqs))
		p.completeLocked(j, status, err)
	case passing(err) && j.tries < p.cfg.Retries:
		j.tries++
		p.mu.count.retries++
		p.mu.pending = append(p.mu.pending, j)
	case len(j.reqs) > 1:
		// One that cannot be done must not keep the others from it: each gets
		// calls, and an answer, of its own.
		for _, r := range j.reqs {
			p.mu.pending = append(p.mu.pending, &job{sge: r.sge, write: j.write, reqs: []request{r}, alone: true})
		}
	default:
		p.mu.count.failed++
		p.completeLocked(j, status, err)
	}
}

// passing reports whether the same call may work next time.
func passing(err error) bool { return errors.Is(err, hca.ErrAgain) || errors.Is(err, hca.ErrQueueFull) }

// completeLocked tells everybody who waits for j.
func (p *Prefetcher) completeLocked(j *job, status hca.WCStatus, err error) {
	for _, r := range j.reqs {
		p.mu.requests--
		p.mu.bytes -= r.sge.Len
		r.queue.complete(r.id, status, err)
	}
}

// flushLocked gives j up.
func (p *Prefetcher) flushLocked(j *job, cause error) {
	p.mu.count.flushed += uint64(len(j.reqs))
	p.completeLocked(j, hca.WCWRFlushErr, &hca.OpError{Op: "prefetch", Device: p.name, Range: j.sge.Range(), Detail: "not tried", Err: cause})
}

// flushPendingLocked gives up all that the device has not been given.
func (p *Prefetcher) flushPendingLocked(cause error) {
	for _, j := range p.mu.pending {
		p.flushLocked(j, cause)
	}
	p.mu.pending = nil
}
