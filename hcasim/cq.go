package hcasim

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"example.com/holdfast/hca"
)

// completionQueue is a bounded ring of completions under a short lock.
type completionQueue struct {
	dev *Device

	// ready is set while Poll has something to say; an empty poll reads
	// nothing else.
	ready atomic.Bool

	mu     sync.Mutex
	ring   []hca.WC
	head   int
	n      int
	lost   bool // it overflowed and nobody was told yet
	closed bool
	users  int           // queue pairs and posted requests that complete here
	wake   chan struct{} // closed when there is something to poll; nil: nobody waits
}

// NewCQ makes a completion queue with room for n entries, 1 to Attr().MaxCQE.
func (d *Device) NewCQ(n int) (hca.CQ, error) {
	const op = "new completion queue"
	if n < 1 || n > d.attr.MaxCQE {
		e := d.err(op, hca.ErrInvalid)
		e.Detail = fmt.Sprintf("%d entries, not between 1 and %d", n, d.attr.MaxCQE)
		return nil, e
	}
	cq := &completionQueue{dev: d, ring: make([]hca.WC, n)}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, d.err(op, hca.ErrClosed)
	}
	if len(d.cqs) >= d.attr.MaxCQ {
		e := d.err(op, hca.ErrNoMemory)
		e.Detail = fmt.Sprintf("there are %d", len(d.cqs))
		return nil, e
	}
	d.cqs[cq] = struct{}{}
	return cq, nil
}

// ownCQ is the device's own queue behind cq, or nil.
func (d *Device) ownCQ(cq hca.CQ) *completionQueue {
	c, _ := cq.(*completionQueue)
	if c == nil || c.dev != d {
		return nil
	}
	return c
}

// Poll moves completions into wc: see hca.CQ. It allocates nothing.
func (c *completionQueue) Poll(wc []hca.WC) (int, error) {
	if !c.ready.Load() {
		return 0, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, c.dev.err("poll", hca.ErrClosed)
	}
	if c.lost && c.n == 0 {
		c.lost = false
		c.ready.Store(false)
		e := c.dev.err("poll", hca.ErrNoMemory)
		e.Detail = fmt.Sprintf("the completion queue overflowed its %d entries and completions were lost", len(c.ring))
		e.Hint = "make it as long as all requests that may be outstanding"
		return 0, e
	}
	n := min(len(wc), c.n)
	for i := range n {
		wc[i] = c.ring[c.head]
		c.ring[c.head] = hca.WC{} // it may hold an MR or an error
		if c.head++; c.head == len(c.ring) {
			c.head = 0
		}
	}
	c.n -= n
	c.ready.Store(c.n > 0 || c.lost)
	return n, nil
}

// push adds a completion and wakes who waits. A full queue loses it, as real
// ones do, and says so once at the next Poll that finds the queue empty.
func (c *completionQueue) push(wc hca.WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pushLocked(wc)
}

// pushLast is push and drop in one step: who sees the completion may close the
// queue.
func (c *completionQueue) pushLast(wc hca.WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pushLocked(wc)
	c.users--
}

func (c *completionQueue) pushLocked(wc hca.WC) {
	if wc.Status != hca.WCSuccess {
		c.dev.count.errors.Add(1)
	}
	if c.n == len(c.ring) {
		c.lost = true
		c.ready.Store(true)
		c.wakeLocked()
		return
	}
	i := c.head + c.n
	if i >= len(c.ring) {
		i -= len(c.ring)
	}
	c.ring[i] = wc
	c.n++
	c.ready.Store(true)
	c.wakeLocked()
}

func (c *completionQueue) wakeLocked() {
	if c.wake != nil {
		close(c.wake)
		c.wake = nil
	}
}

// Wait returns when there is something to poll: see hca.CQ.
func (c *completionQueue) Wait(ctx context.Context) error {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return c.dev.err("wait", hca.ErrClosed)
		}
		if c.n > 0 || c.lost {
			c.mu.Unlock()
			return nil
		}
		if c.wake == nil {
			c.wake = make(chan struct{})
		}
		wake := c.wake
		c.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// hold and drop count what completes here.
func (c *completionQueue) hold() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.users++
	return true
}

func (c *completionQueue) drop() {
	c.mu.Lock()
	c.users--
	c.mu.Unlock()
}

// Close frees the queue: ErrBusy while queue pairs or posted requests use it.
func (c *completionQueue) Close() error {
	c.mu.Lock()
	switch {
	case c.closed:
		c.mu.Unlock()
		return c.dev.err("close completion queue", hca.ErrClosed)
	case c.users > 0:
		defer c.mu.Unlock()
		e := c.dev.err("close completion queue", hca.ErrBusy)
		e.Detail = fmt.Sprintf("%d queue pairs or posted requests complete on it", c.users)
		return e
	}
	c.mu.Unlock()
	c.shut()
	c.dev.mu.Lock()
	delete(c.dev.cqs, c)
	c.dev.mu.Unlock()
	return nil
}

func (c *completionQueue) shut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.ready.Store(true) // so that Poll comes to see it
	c.wakeLocked()
}
