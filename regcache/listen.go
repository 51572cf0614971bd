package regcache

import "example.com/holdfast/hca"

// Notice tells a listener that a Region left look-up, so that what was derived
// from it (an address in a peer's table, a packed descriptor) can be dropped.
type Notice struct {
	Range      hca.Range // what it covered; hca.Whole if Lost
	LKey, RKey uint32    // its keys; 0 if Lost
	// Reclaimed is true if the memory is as it was and only the registration
	// was given up: evicted, swept, replaced by a better one, or the cache was
	// closed. Otherwise the memory went away, or its owner said so.
	Reclaimed bool
	// Lost is true if the listener was so slow that notices were dropped:
	// every Region that it knows of may have left.
	Lost bool
}

// Listener is somebody who is told. Make it with Cache.Listen.
type Listener struct {
	c    *Cache
	wake chan struct{} // room for one
	done chan struct{} // closed when no call will come any more

	// guarded by Cache.mu
	pending []Notice
	lost    bool
	closed  bool
}

// maxNotices is how many notices wait for a slow listener before they are
// replaced by one that says that some were lost.
const maxNotices = 4096

// Listen has f called for every Region that leaves look-up from now on, one call
// at a time, in order, on a goroutine of its own and with no lock held: f may
// take its time and may call the cache. A Region may be deregistered, and its
// keys be dead, before f hears of it. If f returns false it is not called again.
func (c *Cache) Listen(f func(Notice) bool) (*Listener, error) {
	l := &Listener{c: c, wake: make(chan struct{}, 1), done: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != cacheOpen {
		return nil, &hca.OpError{Op: "listen", Device: c.info.Name, Err: hca.ErrClosed}
	}
	c.listeners = append(c.listeners, l)
	go l.serve(f)
	return l, nil
}

// Close ends the listener. When it returns, f is not running and will not be
// called again; so it must not be called from within f, which returns false
// instead. What was not told yet is dropped. Closing twice is harmless. Closing
// the cache tells what is left to tell and closes its listeners, without
// waiting for f.
func (l *Listener) Close() {
	l.c.mu.Lock()
	l.closed, l.pending = true, nil
	l.c.mu.Unlock()
	l.ring()
	<-l.done
}

func (l *Listener) ring() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *Listener) serve(f func(Notice) bool) {
	defer close(l.done)
	for {
		l.c.mu.Lock()
		batch, lost, closed := l.pending, l.lost, l.closed
		l.pending, l.lost = nil, false
		if closed && len(batch) == 0 && !lost {
			l.leaveLocked()
			l.c.mu.Unlock()
			return
		}
		l.c.mu.Unlock()
		if lost {
			batch = append(batch[:0], Notice{Range: hca.Whole, Lost: true})
		}
		for _, n := range batch {
			if !f(n) || l.left() {
				l.c.mu.Lock()
				l.closed = true
				l.leaveLocked()
				l.c.mu.Unlock()
				return
			}
		}
		if len(batch) == 0 {
			<-l.wake
		}
	}
}

// left reports whether Close, and not the cache's end, has ended the listener.
func (l *Listener) left() bool {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	return l.closed && l.c.state == cacheOpen
}

func (l *Listener) leaveLocked() {
	for i, other := range l.c.listeners {
		if other == l {
			l.c.listeners = append(l.c.listeners[:i:i], l.c.listeners[i+1:]...)
			return
		}
	}
}

// tellLocked tells the listeners that r leaves look-up. Cache.mu is held.
func (c *Cache) tellLocked(r *Region) {
	reclaimed := !r.cold.end.memoryGone()
	for _, l := range c.listeners {
		switch {
		case l.closed || l.lost:
		case len(l.pending) >= maxNotices:
			l.pending, l.lost = nil, true
		default:
			l.pending = append(l.pending, Notice{Range: r.Range(), LKey: r.lkey, RKey: r.rkey, Reclaimed: reclaimed})
		}
		l.ring()
	}
}

// endListenersLocked lets the listeners go once they have heard everything.
func (c *Cache) endListenersLocked() {
	for _, l := range c.listeners {
		l.closed = true
		l.ring()
	}
}
