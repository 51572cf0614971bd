package intercept

import (
	"sync/atomic"
	"time"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept/internal/ring"
	"example.com/holdfast/intercept/internal/source"
)

// cursor is one reader's place in the monitor's two rings: what is announced
// by calls, and what the kernel reported (nil without a kernel source).
type cursor struct {
	said           *ring.Ring
	seen           source.Events
	saidAt, seenAt uint64
}

// newCursor starts at now.
func (m *Monitor) newCursor() cursor {
	c := cursor{said: m.said}
	c.saidAt = c.said.Done()
	if m.source != nil {
		c.seen = m.source.Events()
		c.seenAt = c.seen.Done()
	}
	return c
}

// next moves events into buf and says how many; 0 means that both rings were
// empty at one moment during the call. It takes no lock, waits for nobody and
// allocates nothing.
//
// Every source writes the ring before it raises the counter, so the events
// that a settled value of the counter counts were complete in the rings when
// that value was read, and a call that later finds both rings empty has them
// all behind it.
func (c *cursor) next(buf []hca.Event) int {
	said, seen := c.ends()
	n := 0
	for n < len(buf) {
		// Two ways to be behind by more than a ring, one answer: what was
		// lost is not known, so everything may have changed.
		var saidEv, seenEv hca.Event
		var saidStamp, seenStamp uint64
		haveSaid, haveSeen := c.saidAt != said, c.seenAt != seen
		ok := true
		if haveSaid {
			saidEv, saidStamp, ok = c.said.At(c.saidAt)
		}
		if haveSeen && ok {
			seenEv, seenStamp, ok = c.seen.At(c.seenAt)
		}
		switch {
		case !ok:
			said, seen = c.ends()
			c.saidAt, c.seenAt = said, seen
			buf[n] = hca.Event{Range: hca.Whole, Cause: hca.CauseLost}
			n++
			return n
		case haveSaid && (!haveSeen || saidStamp < seenStamp):
			buf[n] = saidEv
			c.saidAt++
		case haveSeen:
			buf[n] = seenEv
			c.seenAt++
		default:
			return n
		}
		n++
	}
	return n
}

// ends gives the ends of both rings as they were at one moment, so that of two
// events in them the one that settled before the other was taken has the
// smaller stamp. The loop turns again only when an announcement came in
// between two of its steps.
func (c *cursor) ends() (said, seen uint64) {
	if c.seen == nil {
		return c.said.Done(), 0
	}
	for {
		said = c.said.Done()
		seen = c.seen.Done()
		if c.said.Done() == said {
			return said, seen
		}
	}
}

// feed is one subscriber.
type feed struct {
	cursor
	m      *Monitor
	wake   func()
	closed atomic.Bool
}

var _ hca.Feed = (*feed)(nil)

// Subscribe opens a feed: every event from now on. wake, which may be nil, is
// called from a goroutine of the monitor after events became visible; one call
// may stand for many events. It must return soon and must neither subscribe
// nor close a feed. ErrClosed after Close.
func (m *Monitor) Subscribe(wake func()) (hca.Feed, error) {
	m.subs.Lock()
	defer m.subs.Unlock()
	if m.closed.Load() {
		return nil, &hca.OpError{Op: "subscribe to events", Err: hca.ErrClosed}
	}
	f := &feed{cursor: m.newCursor(), m: m, wake: wake}
	m.subs.feeds[f] = struct{}{}
	return f, nil
}

// Next is described at hca.Feed. A feed that fell behind by more than the ring
// holds (Config.Ring) gets one event of cause CauseLost over the whole address
// space, and goes on from there.
func (f *feed) Next(buf []hca.Event) int {
	n := f.next(buf)
	if n > 0 && buf[n-1].Cause == hca.CauseLost {
		f.m.lost.Add(1)
	}
	return n
}

// Close ends the feed; wake is not running when it returns and is not called
// again. The monitor may be closed then, and what Next gives from now on need
// not be all. ErrClosed the second time.
func (f *feed) Close() error {
	f.m.subs.Lock()
	defer f.m.subs.Unlock()
	if f.closed.Swap(true) {
		return &hca.OpError{Op: "close feed", Err: hca.ErrClosed}
	}
	delete(f.m.subs.feeds, f)
	return nil
}

// ringBell has the subscribers woken soon. It neither waits nor allocates.
func (m *Monitor) ringBell() {
	select {
	case m.bell <- struct{}{}:
	default: // one ring is waiting already, and it stands for this one too
	}
}

// rest is how long events may be visible before subscribers are woken once
// more: whoever maps and unmaps in a loop would otherwise pay for waking us each
// time, as much as for the call itself. The first event after a rest wakes at
// once. It delays when memory that nobody asks for is unpinned, and nothing
// else: every Get reads the counter. A small ring has a short rest, so that it
// is not full before that.
func (m *Monitor) rest() time.Duration {
	return min(500*time.Microsecond, time.Duration(m.cfg.Ring)*time.Microsecond)
}

// serve calls the wake functions when the bell rings, and keeps the monitor's
// own view of the address space from falling behind.
func (m *Monitor) serve() {
	defer m.workers.Done()
	for {
		select {
		case <-m.bell:
		case <-m.done:
			return
		}
		// The source first: it rings again for what comes from here on.
		if m.source != nil {
			m.source.CatchUp()
		}
		m.subs.Lock()
		for f := range m.subs.feeds {
			if f.wake != nil {
				f.wake()
			}
		}
		m.subs.Unlock()
		select {
		case <-time.After(m.rest()):
		case <-m.done:
			return
		}
	}
}
