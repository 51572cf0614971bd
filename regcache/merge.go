package regcache

import (
	"math/bits"

	"example.com/holdfast/hca"
)

// Many small buffers side by side would each take a key, and devices run out of
// keys. So when a miss finds that it would be the last of a run of neighbours of
// about one size, it registers the whole run at once, and the parts are dropped.
// Each merge makes a Region mergeRun times as long, so a page is registered once
// for each power of mergeRun that its run grows through: 6 times in a run of
// 100,000 pages, of which no more than 6*(mergeRun-1) Regions are left.
//
// It never registers address space that nobody asked for: the run is what stands
// in the index at this moment. Even that is only an attempt. The wider range is
// watched, registered and published like any, so if part of it goes away
// meanwhile it is not published, and the exact range is registered instead; the
// same if the device refuses it. The wider Region allows what any part allowed,
// and is checked like the part that is known least.
const mergeRun = 8

// sizeTier is how many times a Region has been merged, judged by its length.
func (c *Cache) sizeTier(length uint64) int {
	return bits.Len64((length-1)/c.info.PageSize) / bits.Len(mergeRun-1)
}

// mergeLocked answers with the range and access to register instead of g and a,
// if g completes a run of neighbours; ok is false if it does not. Cache.mu is held.
func (c *Cache) mergeLocked(g hca.Range, a hca.Access) (hca.Range, hca.Access, bool) {
	if c.cfg.MaxMerge < 2*c.info.PageSize {
		return g, a, false
	}
	merged := false
	for {
		left, la, n := c.runLocked(g, a, -1)
		right, ra, m := c.runLocked(g, a, +1)
		length := right.End() - left.Addr
		if n+m < mergeRun-1 || length > c.cfg.MaxMerge || c.info.MaxLen > 0 && length > c.info.MaxLen {
			return g, a, merged
		}
		g, a, merged = hca.Range{Addr: left.Addr, Len: length}, a|la|ra, true
	}
}

// runLocked looks for up to mergeRun-1 neighbours of g on one side, no longer
// than g's tier, each touching the one before, and answers with g joined with
// them, what they allow, and how many they are. One that is in use does not
// count: it could not be dropped, so its bytes would be pinned twice. Nor does one
// that gives peers other rights than want does: who has the rkey of one buffer
// must not get at another by it in a way that nobody asked for.
func (c *Cache) runLocked(g hca.Range, want hca.Access, side int) (hca.Range, hca.Access, int) {
	const remote = hca.RemoteRead | hca.RemoteWrite | hca.RemoteAtomic
	tier := c.sizeTier(g.Len)
	var a hca.Access
	for n := 0; ; n++ {
		next := hca.Range{Addr: g.End(), Len: 1}
		if side < 0 {
			next.Addr = g.Addr - 1
		}
		var r *Region
		if n < mergeRun-1 {
			c.index.findAll(next, func(f *Region) bool {
				if f.check != checkNothing && (f.access^want)&remote == 0 && f.state.Load()&stRefs == 0 && c.sizeTier(f.end-f.start) <= tier {
					r = f
				}
				return r == nil
			})
		}
		if r == nil {
			return g, a, n
		}
		start, end := min(g.Addr, r.start), max(g.End(), r.end)
		g, a = hca.Range{Addr: start, Len: end - start}, a|r.access
	}
}
