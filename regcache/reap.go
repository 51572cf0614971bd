package regcache

import (
	"fmt"
	"runtime"
	"time"

	"example.com/holdfast/hca"
)

// wake makes the reaper look. It never blocks.
func (c *Cache) wake() {
	select {
	case c.reap <- struct{}{}:
	default:
	}
}

// reaper applies events when the monitor says there are some, and deregisters
// what is dead, so that memory that went away is unpinned even if nobody calls
// Get again. One goroutine a cache; New starts it, Close ends it.
func (c *Cache) reaper() {
	defer c.workers.Done()
	for {
		select {
		case <-c.stop:
			return
		case <-c.reap:
		}
		c.mu.Lock()
		if c.monitor != nil {
			c.applyLocked()
		}
		dead := c.takeDeadLocked()
		c.mu.Unlock()
		c.deregister(dead)
	}
}

// takeDeadLocked takes what waits for the reaper. Whoever does deregisters it,
// after he has unlocked. Cache.mu is held.
func (c *Cache) takeDeadLocked() []*Region {
	dead := c.dead
	c.dead = nil
	return dead
}

// attach subscribes to the monitor and sees with the cache's own eyes that an
// event arrives: a source that silently delivers nothing is refused here and
// not found out by corrupted data.
func (c *Cache) attach() error {
	fail := func(err error, detail string) error {
		return &hca.OpError{Op: "new cache", Device: c.monitor.String(), Detail: detail, Err: err}
	}
	counter := c.monitor.Counter()
	if counter == nil {
		return fail(hca.ErrNotSupported, "the monitor has no counter")
	}
	c.setCounter(counter)
	feed, err := c.monitor.Subscribe(c.wake)
	if err != nil {
		return fail(err, "subscribing to the monitor")
	}
	before := counter.Load()
	gone, err := c.monitor.Exercise()
	if err == nil {
		err = c.awaitEvent(feed, before, gone)
	}
	if err != nil {
		_ = feed.Close() // the monitor has failed already
		return fail(err, "the monitor's self-test")
	}
	c.feed = feed
	return nil
}

// awaitEvent waits for an event that covers gone and for a settled counter that
// has counted it. The limit is for a monitor that delivers nothing at all.
func (c *Cache) awaitEvent(feed hca.Feed, before uint64, gone hca.Range) error {
	const limit = 5 * time.Second
	timer := time.NewTimer(limit)
	defer timer.Stop()
	seen := false
	for {
		g := c.words[0].counter.Load()
		for n := feed.Next(c.events[:]); n > 0; n = feed.Next(c.events[:]) {
			for _, e := range c.events[:n] {
				seen = seen || e.Range.Contains(gone)
			}
		}
		if seen && g != before && g&hca.Unsettled == 0 {
			c.words[0].applied.Store(g)
			return nil
		}
		if seen { // nobody need announce that the counter settles, as he does an event
			select {
			case <-timer.C:
				return fmt.Errorf("it is still unsettled %v after it took %v away: nothing could be kept: %w", limit, gone, hca.ErrNotSupported)
			default:
				runtime.Gosched()
				continue
			}
		}
		select {
		case <-c.reap:
		case <-timer.C:
			return fmt.Errorf("it took %v away and no event of that arrived within %v: memory that goes away would not be noticed: %w",
				gone, limit, hca.ErrNotSupported)
		}
	}
}
