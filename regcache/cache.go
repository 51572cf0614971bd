package regcache

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/holdfast/hca"
)

// Cache is a registration cache over one Backend. Make it with New.
type Cache struct {
	// Read by hits and seldom written.
	words   [maxWords]word
	index   index
	recall  atomic.Uint64 // how often Views were asked to let go of what they do not use
	omit    omission      // what a test has left out of the protocol; 0 outside tests
	monitor Monitor       // nil: only held memory is kept
	backend Backend
	info    BackendInfo
	cfg     Config
	_       [128]byte // what comes after is written all the time

	made     time.Time
	reap     chan struct{}  // capacity 1: there may be events or dead Regions
	pressure chan struct{}  // capacity 1: something had to be given up
	stop     chan struct{}  // closed to end the workers and the log's writer
	workers  sync.WaitGroup // reaper and sweeper

	mu        sync.Mutex
	state     cacheState            // guarded by mu
	numWords  int                   // guarded by mu: words in use
	feed      hca.Feed              // guarded by mu; nil without monitor
	events    [64]hca.Event         // guarded by mu: scratch for the feed
	scratch   []*Region             // guarded by mu: scratch for look-ups of overlap
	recency   recency               // guarded by mu
	flying    []*flight             // guarded by mu: all registrations under way that may be published
	spare     *flight               // guarded by mu: to be used again
	loose     map[*Region]struct{}  // guarded by mu: registered, in use, out of the index
	dead      []*Region             // guarded by mu: claimed, waiting for the reaper
	usage     usage                 // guarded by mu
	views     map[*View]struct{}    // guarded by mu: open ones
	exports   map[*Region][]*Export // guarded by mu
	listeners []*Listener           // guarded by mu
	gone      *sync.Cond            // on mu: usage went down
	running   int                   // guarded by mu: Gets on the slow path
	count     counts                // guarded by mu
	failed    []error               // guarded by mu: the first deregistrations that failed
	log       journal
}

type cacheState uint8

const (
	cacheOpen cacheState = iota
	cacheClosing
	cacheClosed
)

// usage is what is registered at this moment, whatever its state: kept, in use
// only once, dead and not yet deregistered, or about to be registered.
type usage struct {
	regions int
	bytes   uint64 // pinned
	dying   int    // claimed and not yet deregistered: will go without anybody's Release
	deadB   uint64 // bytes of what is dead, in use or not
}

// New makes a cache over b. It checks with its own eyes that the monitor
// delivers: an event that Monitor.Exercise causes has to arrive, else the
// error says so and the cache is not made.
//
// Errors: hca.ErrInvalid for a Config that makes no sense; hca.ErrNotSupported
// for a monitor that does not deliver; what the monitor says.
func New(b Backend, cfg Config) (*Cache, error) {
	if b == nil {
		return nil, &hca.OpError{Op: "new cache", Detail: "the backend is nil", Err: hca.ErrInvalid}
	}
	info := b.Info()
	if info.PageSize == 0 {
		info.PageSize = 4096
	}
	if info.PageSize&(info.PageSize-1) != 0 {
		return nil, &hca.OpError{Op: "new cache", Detail: fmt.Sprintf("BackendInfo.PageSize of %s is %d, not a power of two", info.Name, info.PageSize), Err: hca.ErrInvalid}
	}
	if err := cfg.validate(info); err != nil {
		return nil, err
	}
	c := &Cache{
		backend: b, info: info, cfg: cfg, monitor: cfg.Monitor,
		made: time.Now(), reap: make(chan struct{}, 1), pressure: make(chan struct{}, 1), stop: make(chan struct{}),
		loose: map[*Region]struct{}{}, exports: map[*Region][]*Export{}, views: map[*View]struct{}{},
	}
	c.gone = sync.NewCond(&c.mu)
	c.index.init(min(info.PageSize, uint64(os.Getpagesize())))
	if info.Follows {
		c.monitor = nil // nothing that it tells could make a registration wrong
	}
	if c.monitor == nil {
		c.setCounter(new(atomic.Uint64))
	} else if err := c.attach(); err != nil {
		return nil, err
	}
	c.startJournal()
	c.workers.Add(1)
	go c.reaper()
	if cfg.SweepEvery > 0 {
		c.workers.Add(1)
		go c.sweeper()
	}
	return c, nil
}

// Config is what the cache keeps to: what New was given, with its zeros
// replaced by what they stand for. Its String says where each limit comes from.
func (c *Cache) Config() Config { return c.cfg }

// Close deregisters everything and ends the cache. While Regions are in use it
// does nothing but answer hca.ErrBusy with their number (*BusyError), and the
// cache works on with all that it had. The second time it answers hca.ErrClosed.
//
// When it returns, all is written to the log that there is to write, unless it
// was called from within Config.Logger's handler: then the rest is written after
// the handler has returned.
//
// Errors of deregistrations, also of earlier ones in the background, are
// returned joined, the first few of them (Stats counts all); the cache is closed
// all the same.
func (c *Cache) Close() error {
	c.mu.Lock()
	if c.state != cacheOpen {
		c.mu.Unlock()
		return &hca.OpError{Op: "close cache", Device: c.info.Name, Err: hca.ErrClosed}
	}
	c.state = cacheClosing // no Get can register any more
	n, holders := c.inUseLocked()
	var views []string
	for v := range c.views {
		views = append(views, v.name)
	}
	slices.Sort(views)
	if n+len(views) > 0 {
		c.state = cacheOpen
		c.mu.Unlock()
		return &BusyError{Regions: n, Holders: holders, Views: views}
	}
	if busy := c.buryAllLocked(); busy != nil {
		c.state = cacheOpen
		c.mu.Unlock()
		return busy
	}
	c.wake()
	for c.usage.regions > 0 {
		c.gone.Wait()
	}
	c.state = cacheClosed
	c.endListenersLocked()
	feed := c.feed
	c.mu.Unlock()

	close(c.stop)
	c.workers.Wait()
	if !inLogHandler() {
		c.log.writer.Wait()
	}
	var err error
	if feed != nil {
		err = feed.Close()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(append(c.failed, err)...)
}

// buryAllLocked hands every Region in look-up to the reaper, or none: a hit that
// began before may still take one, which is not ours to take then. So all are
// claimed first, and if one cannot be, the others are as they were. A hit that
// found one of them dead meanwhile has lost nothing but the straight path: it
// waits for Cache.mu.
func (c *Cache) buryAllLocked() *BusyError {
	all := c.index.all(nil)
	var busy BusyError
	claimed := all[:0]
	for _, r := range all {
		if r.killIdle() {
			claimed = append(claimed, r)
			continue
		}
		busy.Regions++
		holders := r.traceHolders()
		if debugging && len(holders) == 0 {
			holders = []string{r.Range().String() + " taken at this moment, by a Get that has not returned"}
		}
		busy.Holders = append(busy.Holders, holders...)
	}
	for _, r := range claimed {
		if busy.Regions > 0 {
			r.revive()
			continue
		}
		r.cold.end = endClosed
		c.unpublishLocked(r)
		c.buryLocked(r)
	}
	if busy.Regions > 0 {
		return &busy
	}
	return nil
}

// inUseLocked counts the Regions that somebody holds, and the Gets that are
// about to, and names the holders as far as they are traced.
func (c *Cache) inUseLocked() (n int, holders []string) {
	n = len(c.loose) + c.running
	for r := range c.loose {
		holders = append(holders, r.traceHolders()...)
	}
	for _, r := range c.index.all(nil) {
		if r.state.Load()&stRefs != 0 {
			n++
			holders = append(holders, r.traceHolders()...)
		}
	}
	return n, holders
}

// BusyError is why Close refuses. It is hca.ErrBusy for errors.Is.
type BusyError struct {
	Regions int // in use, counting Gets under way and what Views hold
	// Holders names the Gets that were not released, by range and place in the
	// program. Only in builds with the race detector or the tag holdfast_debug.
	Holders []string
	// Views names the Views that are open.
	Views []string
}

// Error says how many.
func (e *BusyError) Error() string {
	s := fmt.Sprintf("close cache: %d Regions are in use: busy (Release them first)", e.Regions)
	if len(e.Views) > 0 {
		s += ": open Views " + strings.Join(e.Views, ", ")
	}
	if len(e.Holders) > 0 {
		s += ": " + strings.Join(e.Holders, "; ")
	}
	return s
}

// Is makes errors.Is(err, hca.ErrBusy) true.
func (e *BusyError) Is(target error) bool { return target == hca.ErrBusy }
