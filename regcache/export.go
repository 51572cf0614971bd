package regcache

import "example.com/holdfast/hca"

// Export is a Region whose rkey was given to a peer on the condition that it can
// be taken back: when the memory goes away the Region is deregistered at once,
// although it is held, so that a late write by the peer fails with a remote
// access error and touches nothing that lies at the address by then.
type Export struct {
	r       *Region
	revoked chan struct{}
	err     error // why the keys may be alive after all; set before revoked is closed
}

// Export makes the Region revocable, until Close. The caller must hold it, and
// still has to Release it. It is only possible where somebody tells of the
// memory's end, or where nobody has to.
//
// Errors: hca.ErrNotSupported for a Region that is used once, because of which
// nobody tells; hca.ErrBadAddress if its memory is gone already.
func (r *Region) Export() (*Export, error) {
	c := r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	e := &hca.OpError{Op: "export", Device: c.info.Name, Range: r.Range()}
	switch {
	case r.cold.why != hca.KeptAllRight:
		e.Err, e.Detail = hca.ErrNotSupported, "it is used only once, because "+r.cold.why.String()
		return nil, e
	case !r.cold.inIndex:
		e.Err, e.Detail = hca.ErrBadAddress, "it left the cache: "+r.cold.end.String()
		return nil, e
	}
	x := &Export{r: r, revoked: make(chan struct{})}
	c.exports[r] = append(c.exports[r], x)
	return x, nil
}

// Remote is what the peer needs to reach b, which must be inside the Region;
// else it panics.
func (x *Export) Remote(b []byte) hca.RemoteAddr { return x.r.Remote(b) }

// Revoked is closed once the Region was deregistered because its memory went
// away. The keys are dead by then, unless Err says otherwise. It is never closed
// after Close.
func (x *Export) Revoked() <-chan struct{} { return x.revoked }

// Err is nil until Revoked is closed, and as a rule after it. If the backend failed
// to deregister it is the backend's error: then the keys may be alive for good, a
// peer that has them may reach the pages that lay there when they were registered,
// and only what ends the peer's way in (its queue pair) keeps it out. The cache
// counts the registration as gone, as any whose deregistration failed:
// Stats.DeregisterErrors, Close. May be called at any time by anybody.
func (x *Export) Err() error {
	select {
	case <-x.revoked:
		return x.err
	default:
		return nil
	}
}

// Close ends the export: from now on the Region lives until its last Release
// like any other. Closing twice is harmless.
func (x *Export) Close() {
	c := x.r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, other := range c.exports[x.r] {
		if other == x {
			c.exports[x.r] = append(c.exports[x.r][:i:i], c.exports[x.r][i+1:]...)
			break
		}
	}
	if len(c.exports[x.r]) == 0 {
		delete(c.exports, x.r)
	}
}

// revokeLocked claims r, which is dead and held, if it is exported and its memory
// went away: its holders gave leave to. Their last Release finds it claimed and
// does nothing. Cache.mu is held.
func (c *Cache) revokeLocked(r *Region) bool {
	if len(c.exports[r]) == 0 || !r.cold.end.memoryGone() || r.state.Or(stClaimed)&stClaimed != 0 {
		return false
	}
	r.cold.revoked = true
	c.count.revocations++
	c.buryLocked(r)
	c.loose[r] = struct{}{} // it is in use, whatever became of its registration
	if r.state.Load()&stRefs == 0 {
		c.leaveLocked(r) // the last Release came in between, and found it not claimed yet
	}
	return true
}

// leave is called when the last reference to a dead Region was given back that
// somebody else had claimed: if it was revoked while it was held, it is out of
// use now and its hits are final.
func (c *Cache) leave(r *Region) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaveLocked(r)
}

func (c *Cache) leaveLocked(r *Region) {
	if _, held := c.loose[r]; held && r.cold.revoked && r.claimIf(0, stRefs, 0) {
		delete(c.loose, r)
		c.count.hits += r.cold.hits
	}
}

// revokedLocked tells the exports of r that the backend was asked to deregister it,
// and its answer, if that was because its memory went away. Cache.mu is held.
func (c *Cache) revokedLocked(r *Region, err error) {
	if r.cold.end.memoryGone() {
		for _, x := range c.exports[r] {
			x.err = err
			close(x.revoked)
		}
	}
	delete(c.exports, r)
}
