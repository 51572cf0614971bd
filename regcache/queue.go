package regcache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"example.com/holdfast/hca"
)

// ErrCanceled is how a posted Get ends that was canceled.
var ErrCanceled = errors.New("canceled")

// Queue makes Gets that do not wait: Post starts one, and its outcome is polled
// later, among others, like any completion. A rendezvous can so overlap
// registration with its handshake. What is cached completes within Post.
//
// Its methods may be called by any number of goroutines at once.
type Queue struct {
	c   *Cache
	cfg QueueConfig

	mu      sync.Mutex
	next    Ticket             // guarded by mu: of the last Post
	waiting []*posted          // guarded by mu: not begun, oldest first
	open    map[Ticket]*posted // guarded by mu: not begun or under way
	done    []Done             // guarded by mu: to be polled, oldest first
	workers int                // guarded by mu: goroutines that register
	closed  bool               // guarded by mu
	ready   chan struct{}      // guarded by mu: closed and replaced when done grows; see Wait
	idle    *sync.Cond         // on mu: a worker has ended
}

// QueueConfig says how a Queue works. The zero value is sensible.
type QueueConfig struct {
	// Depth is how many Gets may be posted and not yet polled. 0: 4096.
	Depth int
	// Workers is how many registrations run at once. 0: 4. They are goroutines
	// that exist only while there is work.
	Workers int
}

// Ticket names a posted Get of one Queue.
type Ticket uint64

// Done is the outcome of a posted Get.
type Done struct {
	ID     uint64  // what Post was given
	Region *Region // to be released by who polled it; nil if Err is set
	Err    error   // as of Get, or ErrCanceled
}

// posted is a Get under way.
type posted struct {
	ticket   Ticket
	id       uint64
	g        hca.Range
	access   hca.Access
	held     unsafe.Pointer
	begun    bool // guarded by Queue.mu
	canceled bool // guarded by Queue.mu
}

// NewQueue makes a Queue. Errors: hca.ErrInvalid, naming the field.
func (c *Cache) NewQueue(cfg QueueConfig) (*Queue, error) {
	for _, f := range []struct {
		name  string
		value *int
		def   int
	}{{"Depth", &cfg.Depth, 4096}, {"Workers", &cfg.Workers, 4}} {
		if *f.value < 0 {
			return nil, &hca.OpError{Op: "new queue", Detail: fmt.Sprintf("QueueConfig.%s is %d", f.name, *f.value), Err: hca.ErrInvalid, Hint: "0 asks for the default"}
		}
		if *f.value == 0 {
			*f.value = f.def
		}
	}
	q := &Queue{c: c, cfg: cfg, open: map[Ticket]*posted{}, ready: make(chan struct{})}
	q.idle = sync.NewCond(&q.mu)
	return q, nil
}

// Post starts Cache.Get for g; its outcome comes with the id. Errors of the call
// itself, nothing started: hca.ErrQueueFull, hca.ErrClosed.
func (q *Queue) Post(id uint64, g hca.Range, a hca.Access) (Ticket, error) {
	return q.post(&posted{id: id, g: g, access: a})
}

// PostBytes is Post for Cache.GetBytes. b is kept until the outcome is there.
func (q *Queue) PostBytes(id uint64, b []byte, a hca.Access) (Ticket, error) {
	p := &posted{id: id, g: hca.RangeOf(b), access: a}
	if len(b) > 0 {
		p.held = unsafe.Pointer(unsafe.SliceData(b))
	}
	return q.post(p)
}

func (q *Queue) post(p *posted) (Ticket, error) {
	// Before q.mu is taken: a hit that is undone may have to deregister.
	r := q.c.hit(p.g.Addr, p.g.Addr+p.g.Len, p.access, maxProbes)
	if r != nil {
		r.traceGet()
	}
	t, err := q.enter(p, r)
	if err != nil && r != nil {
		r.Release()
	}
	return t, err
}

// enter takes what is posted in, as done if r is what it asked for.
func (q *Queue) enter(p *posted, r *Region) (Ticket, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, &hca.OpError{Op: "post get", Range: p.g, Err: hca.ErrClosed}
	}
	if len(q.open)+len(q.done) >= q.cfg.Depth {
		return 0, &hca.OpError{Op: "post get", Range: p.g, Detail: fmt.Sprintf("%d are posted and not polled", q.cfg.Depth), Err: hca.ErrQueueFull}
	}
	q.next++
	p.ticket = q.next
	if r != nil {
		q.finishLocked(Done{ID: p.id, Region: r})
		return p.ticket, nil
	}
	q.open[p.ticket] = p
	q.waiting = append(q.waiting, p)
	if q.workers < q.cfg.Workers {
		q.workers++
		go q.work()
	}
	return p.ticket, nil
}

// work registers what is posted until nothing is left.
func (q *Queue) work() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) > 0 {
		p := q.waiting[0]
		q.waiting = q.waiting[1:]
		p.begun = true
		q.mu.Unlock()
		r, err := q.get(p)
		q.mu.Lock()
		delete(q.open, p.ticket)
		if p.canceled && r != nil {
			q.mu.Unlock()
			r.Release()
			q.mu.Lock()
			r, err = nil, ErrCanceled
		}
		q.finishLocked(Done{ID: p.id, Region: r, Err: err})
	}
	q.workers--
	q.idle.Broadcast()
}

func (q *Queue) get(p *posted) (*Region, error) {
	if p.held == nil {
		return q.c.Get(p.g, p.access)
	}
	return q.c.GetBytes(unsafe.Slice((*byte)(p.held), p.g.Len), p.access)
}

func (q *Queue) finishLocked(d Done) {
	q.done = append(q.done, d)
	close(q.ready)
	q.ready = make(chan struct{})
}

// Cancel asks for a posted Get to be given up, and reports whether it was still
// open. It completes all the same, with ErrCanceled, or with its error if it
// failed first; what was registered for it is released.
func (q *Queue) Cancel(t Ticket) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.open[t]
	if p == nil {
		return false
	}
	p.canceled = true
	if !p.begun {
		delete(q.open, t)
		if i := slices.Index(q.waiting, p); i >= 0 {
			q.waiting = slices.Delete(q.waiting, i, i+1)
		}
		q.finishLocked(Done{ID: p.id, Err: ErrCanceled})
	}
	return true
}

// Poll moves up to len(out) outcomes into out, oldest first, and says how many.
// It does not wait.
func (q *Queue) Poll(out []Done) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := copy(out, q.done)
	clear(q.done[:n])
	q.done = q.done[n:]
	if len(q.done) == 0 {
		q.done = nil
	}
	return n
}

// Wait returns when there is something to poll, when ctx ends (with its error),
// or with hca.ErrClosed.
func (q *Queue) Wait(ctx context.Context) error {
	for {
		q.mu.Lock()
		n, closed, ready := len(q.done), q.closed, q.ready
		q.mu.Unlock()
		if n > 0 {
			return nil
		}
		if closed {
			return &hca.OpError{Op: "wait for gets", Err: hca.ErrClosed}
		}
		select {
		case <-ready:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close ends the Queue: what has not begun is given up, what is under way is
// waited for, and every Region that nobody polled is released. hca.ErrClosed
// the second time. Close queues before their cache.
func (q *Queue) Close() error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return &hca.OpError{Op: "close queue of gets", Err: hca.ErrClosed}
	}
	q.closed = true
	q.waiting = nil
	for q.workers > 0 {
		q.idle.Wait()
	}
	left := q.done
	q.done, q.open = nil, map[Ticket]*posted{}
	close(q.ready)
	q.ready = make(chan struct{})
	q.mu.Unlock()
	for _, d := range left {
		if d.Region != nil {
			d.Region.Release()
		}
	}
	return nil
}
