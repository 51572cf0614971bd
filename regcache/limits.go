package regcache

// The limits count everything that is registered, or about to be: what is
// kept, what is in use only once, what is dead and not yet deregistered. So
// what the cache keeps never makes the process hold more than the limits;
// only Regions in use can.

// fitsLocked reports whether this much more would be within the limits.
func (c *Cache) fitsLocked(regions int, bytes uint64) bool {
	return c.usage.regions+regions <= c.cfg.MaxRegions &&
		bytes <= c.cfg.MaxBytes && c.usage.bytes <= c.cfg.MaxBytes-bytes
}

func (c *Cache) overLocked() bool { return !c.fitsLocked(0, 0) }

// makeRoomLocked evicts idle Regions, oldest first, until this much more fits
// once they are deregistered, and returns them: the caller deregisters them,
// after it has unlocked. It evicts nothing if even that would not be enough
// because of the new one's own size. Cache.mu is held.
func (c *Cache) makeRoomLocked(regions int, bytes uint64) []*Region {
	if bytes > c.cfg.MaxBytes || regions > c.cfg.MaxRegions {
		return nil
	}
	if c.fitsLocked(regions, bytes) {
		return nil
	}
	// What waits for the reaper goes first: it is in nobody's way but counts.
	victims := c.takeDeadLocked()
	freed := usage{}
	for _, r := range victims {
		freed.regions++
		freed.bytes += r.pinned()
	}
	c.press()
	for {
		now := c.usage
		now.regions -= freed.regions
		now.bytes -= freed.bytes
		if now.regions+regions <= c.cfg.MaxRegions && now.bytes <= c.cfg.MaxBytes-bytes {
			return victims
		}
		r := c.evictLocked()
		if r == nil {
			c.recallLocked()
			return victims
		}
		freed.regions++
		freed.bytes += r.pinned()
		victims = append(victims, r)
	}
}

// reclaimLocked finds something to give back after the backend ran out: what is
// dead, else the oldest idle Regions up to the wanted number of bytes, at least
// one. Empty if there is none. Cache.mu is held.
func (c *Cache) reclaimLocked(bytes uint64) []*Region {
	if len(c.dead) > 0 {
		return c.takeDeadLocked()
	}
	c.press()
	c.recallLocked()
	var victims []*Region
	for freed := uint64(0); len(victims) == 0 || freed < bytes; {
		r := c.evictLocked()
		if r == nil {
			break
		}
		freed += r.pinned()
		victims = append(victims, r)
	}
	return victims
}

// evictLocked takes the idle Region that was used longest ago out of look-up and
// counts it; the caller deregisters it, after it has unlocked. nil if none is
// idle. Cache.mu is held.
func (c *Cache) evictLocked() *Region {
	r := c.oldestIdleLocked()
	if r != nil {
		c.dieLocked(r)
		c.count.evictions++
	}
	return r
}
