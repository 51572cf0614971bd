package regcache

import (
	"sync"
	"sync/atomic"

	"example.com/holdfast/hca"
)

// nopBackend registers nothing at all, for benchmarks of the cache alone and
// for tests that count calls. The hooks run before the call has its effect.
type nopBackend struct {
	info         BackendInfo
	onRegister   func(g hca.Range, a hca.Access) error
	onDeregister func(mr *hca.MR) error

	nextKey atomic.Uint32
	mu      sync.Mutex
	live    map[*hca.MR]bool // guarded by mu
	made    int              // guarded by mu
	twice   int              // guarded by mu: deregistered and not live
}

func (b *nopBackend) Info() BackendInfo {
	if b.info.Name == "" {
		b.info.Name = "nop"
	}
	return b.info
}

func (b *nopBackend) Register(g hca.Range, a hca.Access) (*hca.MR, error) {
	if b.onRegister != nil {
		if err := b.onRegister(g, a); err != nil {
			return nil, err
		}
	}
	k := b.nextKey.Add(1)
	mr := &hca.MR{Range: g, Access: a, LKey: k, RKey: k}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.live == nil {
		b.live = map[*hca.MR]bool{}
	}
	b.live[mr] = true
	b.made++
	return mr, nil
}

func (b *nopBackend) Deregister(mr *hca.MR) error {
	if b.onDeregister != nil {
		if err := b.onDeregister(mr); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.live[mr] {
		b.twice++
	}
	delete(b.live, mr)
	return nil
}

func (b *nopBackend) counts() (live, made, twice int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.live), b.made, b.twice
}

// scriptMonitor is a monitor whose events a test writes. It keeps the contract
// of Monitor unless the test makes it break it.
type scriptMonitor struct {
	kind     hca.MemKind // of all memory
	counter  atomic.Uint64
	underWay atomic.Bool
	onProbe  func() // runs inside UnderWay
	onWatch  func(hca.Range)
	deaf     bool // delivers nothing
	// word is the counter of a range's own; nil: all memory is counted by counter
	word func(hca.Range) *atomic.Uint64

	mu     sync.Mutex
	events []hca.Event // guarded by mu: all there ever were
	wakes  []func()    // guarded by mu
}

func (m *scriptMonitor) Counter() *atomic.Uint64 { return &m.counter }
func (m *scriptMonitor) String() string          { return "script" }

func (m *scriptMonitor) Subscribe(wake func()) (hca.Feed, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wakes = append(m.wakes, wake)
	return &scriptFeed{m: m, at: len(m.events)}, nil
}

func (m *scriptMonitor) Watch(g hca.Range) hca.Watch {
	if m.onWatch != nil {
		m.onWatch(g)
	}
	w := hca.Watch{Kind: m.kind, Domains: 1}
	if m.word != nil {
		w.Counter = m.word(g)
	}
	return w
}

func (m *scriptMonitor) UnderWay(uint32) bool {
	if m.onProbe != nil {
		m.onProbe()
	}
	return m.underWay.Load()
}

func (m *scriptMonitor) Exercise() (hca.Range, error) {
	g := hca.Range{Addr: 0x1000, Len: 0x1000}
	if !m.deaf {
		m.event(g)
	}
	return g, nil
}

// put makes an event visible in the feeds without counting it.
func (m *scriptMonitor) put(g hca.Range) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.events = append(m.events, hca.Event{Range: g, Cause: hca.CauseUnmap})
}

// event delivers an event the way a source does.
func (m *scriptMonitor) event(g hca.Range) {
	m.put(g)
	if m.word != nil {
		m.word(g).Add(hca.CounterStep)
	}
	m.counter.Add(hca.CounterStep)
	m.mu.Lock()
	wakes := m.wakes
	m.mu.Unlock()
	for _, w := range wakes {
		w()
	}
}

type scriptFeed struct {
	m  *scriptMonitor
	at int
}

func (f *scriptFeed) Next(buf []hca.Event) int {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	n := copy(buf, f.m.events[f.at:])
	f.at += n
	return n
}

func (f *scriptFeed) Close() error { return nil }
