package odpbackend

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"example.com/holdfast/hca"
)

// Prefetcher has pages made ready ahead of the transfers that will use them. It
// works over any device that can prefetch, and needs no Backend: a request
// names memory and the key of the registration it lies in, as a work request
// does.
//
// Post takes a request and returns; nothing ever waits for a prefetch but who
// wants to. Memory that is warm is answered at once. The rest waits its turn:
// requests that overlap or touch, for the same registration, become one call
// of the device; no more than Config.InFlight calls run at a time; and no two
// that run share a page, because a device that is asked for the same page by
// many at once is slow to answer any of them.
//
// A prefetch is advice. One that fails completes with a status and changes
// nothing: the transfer will fault the pages in. A passing failure
// (hca.ErrAgain) is tried again a few times, any other never.
//
// Make one with NewPrefetcher, end it with Close. Every method may be called by
// any number of goroutines at once.
type Prefetcher struct {
	dev  hca.Device
	name string // of the device
	cfg  PrefetchConfig
	page uint64
	cq   hca.CQ // the device's, for our own calls only
	full error  // what Post says when there is no room

	stop context.CancelFunc // ends run
	done chan struct{}      // closed when run has ended
	calm *sync.Cond         // on mu: inFlight went to 0

	// mu is held for short work in memory, never during a call of the device
	// or of who is followed. A Queue's lock is taken under it.
	mu struct {
		sync.Mutex
		closing  bool   // Close was called
		closed   error  // why nothing is taken any more; nil: it is
		pending  []*job // not given to the device yet, oldest first
		flying   []*job // given to the device, by its id there; nil: free
		inFlight int    // entries of flying that are not nil
		requests int    // posted and not complete
		bytes    uint64 // in those
		warm     *warmth
		count    counts
		feeds    []hca.Feed
		events   [64]hca.Event // scratch
	}
}

// PrefetchConfig says how a Prefetcher behaves. The zero value is sensible.
type PrefetchConfig struct {
	// InFlight is how many calls of the device run at a time, 1 to 1024.
	// Zero: 2. More helps where the device can fault for several at once, and
	// takes more processors and more of the device's fault handling from the
	// transfers that run meanwhile.
	InFlight int

	// MaxRequests and MaxBytes bound what is posted and not complete. A
	// request beyond is dropped: Post says hca.ErrQueueFull. Zero: 1024
	// requests, 1 GiB.
	MaxRequests int
	MaxBytes    uint64

	// MaxMerge is the longest range, in bytes, that requests are put together
	// to: the device works on one call without a break, and on one page at a
	// time in a pessimistic case. A single request may be longer. Zero: 16 MiB.
	MaxMerge uint64

	// MaxWarm is how many bytes of warm pages are remembered; the least
	// recently asked for or used are forgotten first. More than the memory
	// that the kernel can keep resident is useless. Zero: 1 GiB, at most some
	// 3 MiB of heap.
	MaxWarm uint64

	// Retries is how often a call that fails with hca.ErrAgain is made again.
	// Zero: 8. Negative: not at all.
	Retries int
}

func (c *PrefetchConfig) validate(at hca.Attr) error {
	bad := func(detail string) error {
		return &hca.OpError{Op: "odpbackend.NewPrefetcher", Device: at.Name, Detail: detail, Err: hca.ErrInvalid}
	}
	if c.InFlight < 0 || c.InFlight > 1024 {
		return bad(fmt.Sprintf("PrefetchConfig.InFlight is %d, not 1 to 1024", c.InFlight))
	}
	if c.MaxRequests < 0 {
		return bad(fmt.Sprintf("PrefetchConfig.MaxRequests is %d", c.MaxRequests))
	}
	if c.InFlight == 0 {
		c.InFlight = 2
	}
	if c.MaxRequests == 0 {
		c.MaxRequests = 1024
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = 1 << 30
	}
	if c.MaxMerge == 0 {
		c.MaxMerge = 16 << 20
	}
	if c.MaxWarm == 0 {
		c.MaxWarm = 1 << 30
	}
	if c.Retries == 0 {
		c.Retries = 8
	}
	return nil
}

// NewPrefetcher makes a Prefetcher over dev and starts its one goroutine.
//
// Errors: ErrInvalid for a configuration that makes no sense; ErrNotSupported
// where the device cannot prefetch; what the device says where it has no
// completion queue left.
func NewPrefetcher(dev hca.Device, cfg PrefetchConfig) (*Prefetcher, error) {
	p, err := newPrefetcher(dev, cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	go p.run(ctx)
	return p, nil
}

// newPrefetcher makes one that nobody drives yet.
func newPrefetcher(dev hca.Device, cfg PrefetchConfig) (*Prefetcher, error) {
	at := dev.Attr()
	if err := cfg.validate(at); err != nil {
		return nil, err
	}
	if !at.ODP.Prefetch {
		return nil, &hca.OpError{Op: "odpbackend.NewPrefetcher", Device: at.Name, Detail: "the device cannot prefetch", Err: hca.ErrNotSupported,
			Hint: "do without: pages are faulted in when they are used"}
	}
	page := at.PageSize
	if page == 0 || page&(page-1) != 0 {
		page = 4096
	}
	cq, err := dev.NewCQ(cfg.InFlight)
	if err != nil {
		return nil, err
	}
	p := &Prefetcher{dev: dev, name: at.Name, cfg: cfg, page: page, cq: cq, stop: func() {}, done: make(chan struct{})}
	p.full = &hca.OpError{Op: "prefetch", Device: at.Name,
		Detail: fmt.Sprintf("more than %d requests or %v are outstanding", cfg.MaxRequests, hca.Bytes(cfg.MaxBytes)),
		Err:    hca.ErrQueueFull, Hint: "nothing is lost: the pages are faulted in when they are used"}
	p.calm = sync.NewCond(&p.mu.Mutex)
	p.mu.flying = make([]*job, cfg.InFlight)
	p.mu.warm = newWarmth(page, cfg.MaxWarm)
	return p, nil
}

// Post asks for the pages of s to be made ready, for writing by the device if
// write is true, and returns without waiting for it. The completion arrives on
// q as a WC with Op WCAdvise and the given id; with q nil nobody is told. A
// completion without success has Err set, and one of these statuses:
//
//   - WCWRFlushErr: not tried. The memory went away (Gone, Follow) or the
//     Prefetcher was closed before its turn came.
//   - what the device said otherwise, WCGeneralErr as a rule: no such key,
//     memory that is not mapped, hca.ErrAgain once too often.
//
// Success means that the pages were ready at one moment since Post, not that
// they still are.
//
// Errors of the call itself, with nothing to arrive on q: ErrInvalid for a
// range without bytes or past the end of the address space; ErrTooLong for one
// longer than PrefetchConfig.MaxBytes; ErrQueueFull where the limits are
// reached or q has no place left; ErrClosed.
func (p *Prefetcher) Post(q *Queue, id uint64, s hca.SGE, write bool) error {
	r := s.Range()
	fail := func(detail string, err error) error {
		return &hca.OpError{Op: "prefetch", Device: p.name, Range: r, Detail: detail, Err: err}
	}
	switch {
	case !r.Valid():
		return fail(fmt.Sprintf("%d bytes from %#x on", r.Len, r.Addr), hca.ErrInvalid)
	case r.Len > p.cfg.MaxBytes:
		return fail(fmt.Sprintf("PrefetchConfig.MaxBytes is %v", hca.Bytes(p.cfg.MaxBytes)), hca.ErrTooLong)
	}
	p.mu.Lock()
	if p.mu.closed != nil {
		defer p.mu.Unlock()
		return fail("", p.mu.closed)
	}
	p.readFeedsLocked()
	warm := p.mu.warm.cold(s, write).Empty()
	if !warm && (p.mu.requests >= p.cfg.MaxRequests || r.Len > p.cfg.MaxBytes-p.mu.bytes) {
		p.mu.count.dropped++
		p.mu.Unlock()
		return p.full
	}
	if err := q.reserve(); err != nil {
		if errors.Is(err, hca.ErrQueueFull) {
			p.mu.count.dropped++
		}
		p.mu.Unlock()
		return fail("the completion queue", err)
	}
	p.mu.count.requests++
	if warm {
		p.mu.count.warm++
		p.mu.Unlock()
		q.complete(id, hca.WCSuccess, nil)
		return nil
	}
	p.mu.requests++
	p.mu.bytes += r.Len
	p.enqueueLocked(request{queue: q, id: id, sge: s}, write)
	p.mu.Unlock()
	p.dispatch()
	return nil
}

// Used says that a transfer goes through the pages of s: the prefetch that made
// them ready was of use, and they are recent. Without it Stats cannot tell
// useful prefetches from useless ones.
func (p *Prefetcher) Used(s hca.SGE) {
	if !s.Range().Valid() {
		return
	}
	p.mu.Lock()
	p.mu.warm.use(s)
	p.mu.Unlock()
}

// run takes completions from the device until Close, or until the device's
// queue is of no use any more.
func (p *Prefetcher) run(ctx context.Context) {
	defer close(p.done)
	for {
		progress, err := p.progress()
		if err == nil && !progress {
			err = p.cq.Wait(ctx)
		}
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return
		default:
			p.broken(err)
			return
		}
	}
}

// progress takes what completions there are, and gives the device what waited
// for them.
func (p *Prefetcher) progress() (bool, error) {
	var wcs [16]hca.WC
	n, err := p.cq.Poll(wcs[:])
	for _, wc := range wcs[:n] {
		err := wc.Err
		if err == nil && wc.Status != hca.WCSuccess {
			err = wc.Status
		}
		p.finish(wc.ID, wc.Status, err)
	}
	if n > 0 {
		p.dispatch()
	}
	return n > 0, err
}

// dispatch gives the device what may run now. A device that refuses a call at
// once has it finished here; every call is tried a bounded number of times, so
// this ends.
func (p *Prefetcher) dispatch() {
	for {
		p.mu.Lock()
		j, id := p.takeLocked()
		p.mu.Unlock()
		if j == nil {
			return
		}
		if err := p.dev.PostAdvise(p.cq, id, advice(j.write), j.sgl[:]); err != nil {
			p.finish(id, hca.WCGeneralErr, err)
		}
	}
}

// broken ends everything because the device's completion queue failed, as when
// the device was closed under it.
func (p *Prefetcher) broken(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed == nil {
		p.mu.closed = fmt.Errorf("%w: the device's completion queue failed: %w", hca.ErrClosed, err)
	}
	for i, j := range p.mu.flying {
		if j != nil {
			p.mu.flying[i] = nil
			p.flushLocked(j, p.mu.closed)
		}
	}
	p.mu.inFlight = 0
	p.flushPendingLocked(p.mu.closed)
	p.calm.Broadcast()
}

// Close ends the Prefetcher: what has not been given to the device completes
// with WCWRFlushErr, and what has is waited for, which takes as long as the
// device does. Queues keep the completions that were not polled. It waits for
// nobody else, and closes neither the device nor any Queue. ErrClosed the
// second time.
func (p *Prefetcher) Close() error {
	p.mu.Lock()
	if p.mu.closing {
		p.mu.Unlock()
		return &hca.OpError{Op: "close prefetcher", Device: p.name, Err: hca.ErrClosed}
	}
	p.mu.closing, p.mu.closed = true, hca.ErrClosed
	p.flushPendingLocked(p.mu.closed)
	for p.mu.inFlight > 0 {
		p.calm.Wait()
	}
	feeds := p.mu.feeds
	p.mu.feeds = nil
	p.mu.Unlock()

	var errs []error
	for _, f := range feeds { // not under mu: a wake function that runs now wants it
		errs = append(errs, f.Close())
	}
	p.stop()
	<-p.done
	if err := p.cq.Close(); err != nil && !errors.Is(err, hca.ErrClosed) { // closed: with the device
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
