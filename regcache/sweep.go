package regcache

import (
	"log/slog"
	"sort"
	"time"

	"example.com/holdfast/hca"
)

// The sweep compares what is kept with what is mapped (/proc/self/maps), and
// drops idle Regions over memory that is gone. For pinned memory it is a second
// net and proves nothing: the same address with new memory looks the same.
// Under on-demand paging, where nothing has to be invalidated, it is what keeps
// the number of registrations bounded. It also drops what was idle for longer
// than Config.MaxIdle.

// sweepBatch is how many entries of the index, or Regions of the recency list,
// are looked at in one go under the cache's lock: some tens of microseconds.
const sweepBatch = 1024

// sweeper runs sweeps, at most as often as Config says. One goroutine a cache.
func (c *Cache) sweeper() {
	defer c.workers.Done()
	timer := time.NewTimer(c.cfg.SweepEvery)
	defer timer.Stop()
	for {
		select {
		case <-c.stop:
			return
		case <-timer.C:
		case <-c.pressure:
		}
		began := time.Now()
		c.Sweep()
		took := time.Since(began)
		// Until its share has been earned again, pressure does not count.
		rest := time.Duration(min(float64(took)/c.cfg.SweepShare, float64(24*time.Hour)))
		timer.Reset(rest)
		select {
		case <-c.stop:
			return
		case <-timer.C:
		}
		timer.Reset(max(c.cfg.SweepEvery-took-rest, 0))
	}
}

// press asks for a sweep because something had to be given up.
func (c *Cache) press() {
	select {
	case c.pressure <- struct{}{}:
	default:
	}
}

// Sweep does one sweep now and says how many Regions it dropped. It never holds
// the cache's lock for long. Where the mappings cannot be read it drops only
// what was idle for too long.
func (c *Cache) Sweep() int {
	n := 0
	mapped, err := mappings()
	if err == nil {
		n += c.sweepUnmapped(mapped)
	}
	if c.cfg.MaxIdle > 0 {
		n += c.sweepOld(c.clock() - c.cfg.MaxIdle)
	}
	c.mu.Lock()
	if err != nil && c.log.debug {
		c.lineLocked(slog.LevelDebug, "sweep: cannot read the mappings", []slog.Attr{slog.Any("err", err)})
	}
	c.count.sweeps++
	c.count.swept += uint64(n)
	victims := c.takeDeadLocked()
	c.mu.Unlock()
	c.deregister(victims)
	return n
}

// sweepUnmapped drops idle Regions whose memory is not mapped: any of it for
// registrations of particular memory, all of it for registrations of address
// space. A Region published after the mappings were read, over a mapping made
// after that, may be dropped as well: a miss, not an error.
func (c *Cache) sweepUnmapped(mapped []hca.Range) int {
	n := 0
	for from, more := 0, true; more; from += sweepBatch {
		c.mu.Lock()
		t := c.index.table.Load()
		to := min(from+sweepBatch, len(t.entries))
		more = to < len(t.entries)
		for i := min(from, to); i < to; i++ {
			r := t.entries[i].Load()
			if r == nil || r == gone {
				continue
			}
			if r.check == checkNothing && !c.info.Follows || stillMapped(mapped, r.Range(), c.info.Follows) || !r.killIdle() {
				continue
			}
			r.cold.end = endSwept
			c.unpublishLocked(r)
			c.dieLocked(r)
			c.dead = append(c.dead, r)
			n++
		}
		c.mu.Unlock()
	}
	return n
}

// stillMapped reports whether all of g, or any of it, is in the mapped ranges,
// which are sorted and do not touch each other.
func stillMapped(mapped []hca.Range, g hca.Range, any bool) bool {
	i := sort.Search(len(mapped), func(i int) bool { return mapped[i].End() > g.Addr })
	if i == len(mapped) {
		return false
	}
	if any {
		return mapped[i].Overlaps(g)
	}
	return mapped[i].Contains(g)
}

// sweepOld drops idle Regions that were last used before the given moment.
func (c *Cache) sweepOld(before time.Duration) int {
	n := 0
	for more := true; more; {
		c.mu.Lock()
		for range sweepBatch {
			oldest := c.recency.oldest
			if more = oldest != nil && oldest.used < before; !more {
				break
			}
			if r := c.lookAtOldestLocked(true); r != nil {
				c.dieLocked(r)
				c.dead = append(c.dead, r)
				n++
			}
		}
		c.mu.Unlock()
	}
	return n
}

// clock is the time since the cache was made.
func (c *Cache) clock() time.Duration { return time.Since(c.made) }
