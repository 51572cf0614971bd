package regcache

// Parts of the hit protocol, for Omit.
const (
	OmitParity     = uint8(omitParity)
	OmitApplied    = uint8(omitApplied)
	OmitProbe      = uint8(omitProbe)
	OmitSecondLook = uint8(omitSecondLook)
)

// Omit leaves parts out of the protocol that a hit follows, so that a test can
// see that the kernel needs each of them. Call it before anybody calls Get.
func (c *Cache) Omit(parts uint8) {
	c.mu.Lock() // of the reaper
	defer c.mu.Unlock()
	c.omit = omission(parts)
}

// Tracing is true in builds that trace who holds a Region.
const Tracing = debugging
