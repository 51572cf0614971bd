package intercept

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept/internal/ring"
	"example.com/holdfast/intercept/internal/source"
)

// Monitor tells when memory goes away. Make one with [Auto], [Userfault] or
// [Explicit]; every method may be called by any number of goroutines at once.
type Monitor struct {
	cfg Config

	// counter is the word that every hit reads, on a cache line that nothing
	// else is written to. It can be read after Close, for as long as anybody
	// holds the monitor.
	counter *atomic.Uint64

	words [numWords]counterLine // of owned memory: see words.go

	said   *ring.Ring    // announced by calls; the writer holds own
	source source.Source // nil without a kernel source
	kernel *kernel       // the same, if it is userfaultfd
	lesser error         // why there is no better source

	own struct {
		sync.Mutex
		ledger
	}

	subs struct {
		sync.Mutex // also held while the wake functions run
		feeds      map[*feed]struct{}
	}
	bell    chan struct{} // room for one
	done    chan struct{} // closed by Close
	workers sync.WaitGroup
	closed  atomic.Bool

	lost             atomic.Uint64
	watches, foreign atomic.Uint64
	unknown          [hca.NumUnkept]atomic.Uint64
	announced        [hca.CauseLost + 1]atomic.Uint64
}

// Config says how to watch. The zero value is sensible.
type Config struct {
	// Descriptors is how many event channels to spread mappings over, 1 to 32.
	// A channel on which something is under way makes every look-up of memory
	// on it take the slow way, so memory that is mapped and unmapped all the
	// time should share few channels with memory that stays. 0: 4.
	Descriptors int

	// Ring is how many events are kept for feeds that are slow to read, a
	// power of two from 64 to 1<<20, 32 bytes each. A feed that falls behind
	// by more is told that anything may have changed. 0: 16384.
	Ring int

	// Strict makes memory that was mapped through the monitor be watched by
	// the kernel source too, like any other. For programs in which it cannot
	// be excluded that somebody unmaps it behind the monitor's back. It needs
	// a kernel source.
	Strict bool
}

func (c Config) withDefaults() Config {
	if c.Descriptors == 0 {
		c.Descriptors = 4
	}
	if c.Ring == 0 {
		c.Ring = 16384
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Descriptors < 1 || c.Descriptors > 32:
		return &hca.OpError{Op: "configure monitor", Detail: fmt.Sprintf("Descriptors is %d, not 1 to 32", c.Descriptors), Err: hca.ErrInvalid}
	case c.Ring < 64 || c.Ring > 1<<20 || c.Ring&(c.Ring-1) != 0:
		return &hca.OpError{Op: "configure monitor", Detail: fmt.Sprintf("Ring is %d, not a power of two from 64 to %d", c.Ring, 1<<20), Err: hca.ErrInvalid}
	}
	return nil
}

// counterLine is the counter alone on two cache lines: the second because
// processors fetch lines in pairs.
type counterLine struct {
	_    [64]byte
	word atomic.Uint64
	_    [120]byte
}

func newMonitor(cfg Config) *Monitor {
	m := &Monitor{cfg: cfg, counter: &new(counterLine).word, bell: make(chan struct{}, 1), done: make(chan struct{})}
	m.said = ring.New(cfg.Ring)
	m.subs.feeds = map[*feed]struct{}{}
	m.own.owned.s = make([]span, 0, 16)
	return m
}

// Explicit makes a monitor without a kernel source. It knows the end of memory
// that was mapped through it, or that is announced to it with Begin and End,
// and of nothing else: all other memory is hca.MemUnknown. It works on every
// system and in every build.
func Explicit() (*Monitor, error) {
	m := newMonitor(Config{}.withDefaults())
	m.start()
	if err := m.selfTest(); err != nil {
		m.shut()
		return nil, err
	}
	return m, nil
}

// Userfault makes a monitor that sees the end of any memory of this process,
// whoever unmaps it, through userfaultfd: see [UserfaultConfig], whose zero
// Config it uses.
func Userfault() (*Monitor, error) { return UserfaultConfig(Config{}) }

// Auto makes the best monitor that works here: userfaultfd, else explicit
// calls only. [Monitor.Lesser] tells why it is not the better one; print it,
// or Monitor.String, so that nobody wonders later why nothing is cached.
func Auto() (*Monitor, error) {
	m, why := Userfault()
	if why == nil {
		return m, nil
	}
	m, err := Explicit()
	if err != nil {
		return nil, err
	}
	m.lesser = why
	return m, nil
}

// Lesser is why Auto could not take the best source, nil if it did or was not
// asked.
func (m *Monitor) Lesser() error { return m.lesser }

// start starts the goroutine that wakes subscribers.
func (m *Monitor) start() {
	m.workers.Add(1)
	go m.serve()
}

// Counter is the word that every hit reads: see hca.CounterStep. After Close
// it stays unsettled for ever, so that nothing it could have vouched for is
// believed. The word may lie in memory that is shared with the kernel and ends
// with the Monitor: whoever keeps the pointer must keep the Monitor too.
func (m *Monitor) Counter() *atomic.Uint64 { return m.counter }

// UnderWay is the probe of foreign memory: false only if, at some moment
// during the call, nothing that ends memory on the domain had begun without
// being counted. For several domains the moments may differ, unless the
// counter is the same before and after the call: then the first moment serves
// for all, because what was under way on a later domain at that moment and was
// not when its turn came has been counted in between. It makes one raw system
// call a domain (0.2 us) and allocates nothing. After Close it is always true:
// nothing is proven.
func (m *Monitor) UnderWay(domains uint32) bool {
	switch {
	case m.closed.Load():
		return true
	case domains == 0:
		return false
	case m.source == nil:
		return true
	}
	busy := m.source.UnderWay(domains)
	// Close raises the flag before it closes descriptors, whose numbers may be
	// somebody else's now.
	return busy || m.closed.Load()
}

// String says in one line which source runs, what it sees and what not.
func (m *Monitor) String() string {
	var b strings.Builder
	if m.source != nil {
		b.WriteString(m.source.String())
	} else {
		b.WriteString("explicit calls only: keeps memory that is mapped through the monitor, and no other")
	}
	if m.lesser != nil {
		fmt.Fprintf(&b, "; no better because: %v", m.lesser)
	}
	if m.closed.Load() {
		b.WriteString("; closed")
	}
	return b.String()
}

// Close ends the monitor: its thread, goroutines and descriptors. hca.ErrBusy,
// with the count, while feeds are open: a cache must not be left believing a
// monitor that sees nothing. hca.ErrClosed the second time.
//
// Afterwards nothing is vouched for: the counter is unsettled, UnderWay true,
// and all memory unknown. What could fail answers hca.ErrClosed, except the
// calls on memory (Mmap, Munmap and their like) and Begin, which do what they
// do and tell nobody: memory mapped through the monitor stays mapped, and is
// unmapped as before.
func (m *Monitor) Close() error {
	m.subs.Lock()
	if m.closed.Load() {
		m.subs.Unlock()
		return &hca.OpError{Op: "close monitor", Err: hca.ErrClosed}
	}
	if n := len(m.subs.feeds); n > 0 {
		m.subs.Unlock()
		return &hca.OpError{Op: "close monitor", Detail: fmt.Sprintf("%d feeds are open", n), Err: hca.ErrBusy, Hint: "close the caches that use it first"}
	}
	m.closed.Store(true)
	m.subs.Unlock()
	m.shut()
	return nil
}

// shut does the work of Close.
func (m *Monitor) shut() {
	m.closed.Store(true)
	for i := range m.words {
		m.words[i].word.Add(1)
	}
	m.counter.Add(1) // unsettled, and nobody will settle it, like the words
	if m.source != nil {
		m.source.Stop()
	}
	close(m.done)
	m.workers.Wait()
}
