package regcache

import (
	"errors"
	"math"
	"os"
	"runtime"
	"unsafe"

	"example.com/holdfast/hca"
)

// Get answers with a Region that covers g with at least the access a, ready to
// be used by the adapter until its Release. g must be mapped, and must stay so
// until then; the memory must not be thrown away (madvise) in between either.
//
// A hit costs nanoseconds; see UsedOnce for what could not be kept. Memory of a
// goroutine's stack must not be given: it moves. What GetBytes is given is never
// on a stack.
//
// Errors, after which the cache works on as before: hca.ErrInvalid (empty
// range, access that makes no sense), hca.ErrClosed, and those of the backend:
// hca.ErrBadAddress, hca.ErrAccess, hca.ErrTooLong, and hca.ErrNoMemory or
// hca.ErrNoKeys once nothing but Regions in use is left to give back.
func (c *Cache) Get(g hca.Range, a hca.Access) (*Region, error) {
	return c.lookUp(g.Addr, g.Len, a, nil)
}

// GetBytes is Get for the bytes of b. If they lie on the Go heap, which is found
// out and not assumed, the cache keeps a pointer into their pages for as long as
// it keeps the registration, so the pages stay what they are: then nothing has to
// be watched, and a hit is as cheap as it can be. The price is that garbage of up
// to Config.MaxBytes lives until it is evicted.
//
// What the cache keeps alive is the object that made it register the pages, which
// need not be b. The caller has to keep b itself reachable until the adapter is
// done with it and the Region is released (runtime.KeepAlive), as for any memory
// that is used behind the garbage collector's back.
//
// Discarding or remapping Go heap memory by system call (madvise on a slice that
// make returned) is outside the contract, as it is in Go at large.
func (c *Cache) GetBytes(b []byte, a hca.Access) (*Region, error) {
	return c.lookUp(0, uint64(len(b)), a, unsafe.Pointer(unsafe.SliceData(b)))
}

// How often a Get tries to see the monitor settled before it registers for this
// one use: each try gives up the processor once, and the reader of the kernel's
// events needs one wake-up, 5 to 45 us on an idle machine.
const maxTries = 24

// One try more for each 256 KiB of the range: it is cheaper to wait a little
// longer than to register what is long once more.
const triesShift = 18

// get is the slow path: it helps to apply events, looks again, joins a
// registration of the same range that is under way, or makes one. p is not nil
// if the caller has a slice, whose memory is then held if it is Go heap.
func (c *Cache) get(addr, n uint64, a hca.Access, p unsafe.Pointer) (*Region, error) {
	g := hca.Range{Addr: addr, Len: n}
	if !g.Valid() {
		return nil, c.badRange(g)
	}
	if c.info.MaxLen > 0 && g.Len > c.info.MaxLen {
		return nil, &hca.OpError{Op: "get", Device: c.info.Name, Range: g, Err: hca.ErrTooLong,
			Detail: "one registration has at most " + hca.Bytes(c.info.MaxLen).String(), Hint: "GetList makes several"}
	}
	if err := a.Validate(); err != nil {
		return nil, err
	}
	if a&hca.OnDemand != 0 {
		return nil, &hca.OpError{Op: "get", Device: c.info.Name, Range: g, Detail: "OnDemand is the backend's to choose", Err: hca.ErrInvalid}
	}
	if p != nil && !onGoHeap((*byte)(p)) {
		p = nil
	}
	c.mu.Lock()
	if c.state != cacheOpen {
		c.mu.Unlock()
		return nil, &hca.OpError{Op: "get", Device: c.info.Name, Range: g, Err: hca.ErrClosed}
	}
	c.running++
	r, err := c.getLocked(g, a, p)
	c.running--
	c.mu.Unlock()
	if r != nil {
		r.traceGet()
	}
	return r, err
}

func (c *Cache) badRange(g hca.Range) error {
	return &hca.OpError{Op: "get", Device: c.info.Name, Range: g, Detail: "the range is empty or runs past the end of the address space", Err: hca.ErrInvalid}
}

// getLocked is called with Cache.mu held and returns with it held; in between
// it lets go of it.
func (c *Cache) getLocked(g hca.Range, a hca.Access, held unsafe.Pointer) (*Region, error) {
	reg := c.whatToRegister(g, held)
	joined := 0
	for try := 0; ; try++ {
		c.applyLocked()
		union, found := c.lookLocked(g, reg, a)
		if found {
			c.mu.Unlock() // hit may have to give a Region back, which locks
			r := c.hit(g.Addr, g.End(), a, math.MaxInt)
			if r == nil {
				runtime.Gosched()
			}
			c.mu.Lock()
			if r != nil {
				c.count.slowHits++
				return r, nil
			}
			if try >= maxTries+int(g.Len>>triesShift) {
				return c.flyLocked(flight{reg: reg, access: a, held: held, once: hca.UnkeptUnsettled})
			}
			continue
		}
		f := c.sharedLocked(reg)
		if f == nil || !f.access.Has(a) || joined == 2 {
			return c.flyLocked(flight{reg: reg, access: a, union: union, held: held, shared: f == nil && c.keepable(held)})
		}
		// Somebody registers the same range. What he makes is taken by looking
		// it up like anybody's, with all the checks; if it cannot be kept it is
		// his alone. His failure is ours too, unless he asked for more than we
		// do, or the memory may have been mapped since.
		joined++
		if f.done == nil {
			f.done = make(chan struct{})
		}
		done := f.done
		c.mu.Unlock()
		<-done
		c.mu.Lock()
		if f.err != nil && f.access == a && !errors.Is(f.err, hca.ErrBadAddress) {
			c.count.joinedErrors++
			return nil, f.err
		}
	}
}

// lookLocked reports whether a Region covers g with at least the access a. If none
// does, union is a plus what the Regions that cover all of reg allow: so that two
// users who want different things of the same range end up with one registration
// that serves both. Whatever covers reg covers g, so one look at the index finds
// both. Cache.mu is held.
func (c *Cache) lookLocked(g, reg hca.Range, a hca.Access) (union hca.Access, found bool) {
	union = a
	c.index.findAll(g, func(r *Region) bool {
		found = r.access.Has(a)
		if r.Range().Contains(reg) {
			union |= r.access
		}
		return !found
	})
	return union &^ hca.OnDemand, found
}

// keepable reports whether a registration could be kept at all.
func (c *Cache) keepable(held unsafe.Pointer) bool {
	return held != nil || c.monitor != nil || c.info.Follows
}

// whatToRegister is the range to register for g: whole pages, because memory is
// mapped and unmapped by pages; but exactly g if it cannot be kept, if its pages
// are more than the backend can register at once, or if the last of them is the
// last of the address space, which has no end address.
//
// Whole pages are right for held memory too, although the rest of its first and
// last page belongs to other objects: a page of which a part is alive is neither
// unmapped nor given back, so what is registered stays that address's page. That is
// so for the system's pages, not for larger ones that a backend may have.
func (c *Cache) whatToRegister(g hca.Range, held unsafe.Pointer) hca.Range {
	size := c.info.PageSize
	if held != nil {
		size = min(size, uint64(os.Getpagesize()))
	}
	pages := g.Pages(size)
	if c.keepable(held) && pages.Contains(g) && (c.info.MaxLen == 0 || pages.Len <= c.info.MaxLen) {
		return pages
	}
	return g
}
