package odpbackend

import (
	"context"
	"fmt"
	"sync"

	"example.com/holdfast/hca"
)

// Queue is a completion queue for requests to a Prefetcher, to be polled like
// that of a device. It cannot overflow: every request takes a place in it when
// it is posted, and gives it back when its completion is polled. Make one with
// NewQueue. One Queue serves any number of Prefetchers; its methods may be
// called by any number of goroutines at once.
type Queue struct {
	mu struct {
		sync.Mutex
		ring   []hca.WC
		head   int
		n      int           // complete and not polled
		owed   int           // posted and not complete
		wake   chan struct{} // closed when there is something to poll; nil: nobody waits
		closed bool
	}
}

var _ hca.CQ = (*Queue)(nil)

// NewQueue makes a queue for up to n requests that are outstanding or complete
// and not polled yet. ErrInvalid if n is less than 1.
func NewQueue(n int) (*Queue, error) {
	if n < 1 {
		return nil, &hca.OpError{Op: "new prefetch queue", Detail: fmt.Sprintf("%d entries", n), Err: hca.ErrInvalid}
	}
	q := &Queue{}
	q.mu.ring = make([]hca.WC, n)
	return q, nil
}

// Poll moves up to len(wc) completions into wc, oldest first, and says how
// many. It neither waits nor allocates. ErrClosed after Close.
func (q *Queue) Poll(wc []hca.WC) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.closed {
		return 0, &hca.OpError{Op: "poll prefetch queue", Err: hca.ErrClosed}
	}
	n := min(len(wc), q.mu.n)
	for i := range n {
		wc[i] = q.mu.ring[q.mu.head]
		q.mu.ring[q.mu.head] = hca.WC{} // it may hold an error
		q.mu.head = (q.mu.head + 1) % len(q.mu.ring)
	}
	q.mu.n -= n
	return n, nil
}

// Wait returns when there is something to poll, when ctx ends (with its error)
// or when the queue is closed (ErrClosed).
func (q *Queue) Wait(ctx context.Context) error {
	for {
		q.mu.Lock()
		if q.mu.closed {
			q.mu.Unlock()
			return &hca.OpError{Op: "wait for prefetch queue", Err: hca.ErrClosed}
		}
		if q.mu.n > 0 {
			q.mu.Unlock()
			return nil
		}
		if q.mu.wake == nil {
			q.mu.wake = make(chan struct{})
		}
		wake := q.mu.wake
		q.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close frees the queue, with what was not polled. ErrBusy, with the number,
// while requests are outstanding; ErrClosed the second time.
func (q *Queue) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.mu.closed:
		return &hca.OpError{Op: "close prefetch queue", Err: hca.ErrClosed}
	case q.mu.owed > 0:
		return &hca.OpError{Op: "close prefetch queue", Detail: fmt.Sprintf("%d requests are outstanding", q.mu.owed),
			Err: hca.ErrBusy, Hint: "poll them, or close the Prefetcher"}
	}
	q.mu.closed = true
	q.mu.ring, q.mu.n = nil, 0
	q.wakeLocked()
	return nil
}

func (q *Queue) wakeLocked() {
	if q.mu.wake != nil {
		close(q.mu.wake)
		q.mu.wake = nil
	}
}

// reserve takes a place for one completion. A nil queue has room for all and
// remembers none.
func (q *Queue) reserve() error {
	if q == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.mu.closed:
		return hca.ErrClosed
	case q.mu.owed+q.mu.n == len(q.mu.ring):
		return hca.ErrQueueFull
	}
	q.mu.owed++
	return nil
}

// complete puts a completion into its reserved place and wakes who waits.
func (q *Queue) complete(id uint64, status hca.WCStatus, err error) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	i := (q.mu.head + q.mu.n) % len(q.mu.ring)
	q.mu.ring[i] = hca.WC{ID: id, Op: hca.WCAdvise, Status: status, Err: err}
	q.mu.n++
	q.mu.owed--
	q.wakeLocked()
}
