package regcache

import (
	"runtime"
	"sync"
	"sync/atomic"

	"example.com/holdfast/hca"
)

// host is a machine that exists in this test only: pages of memory whose
// contents are a generation number, a monitor that reports their end the way
// the kernel and the explicit calls do, and an adapter whose registrations
// remember the generations that they pinned. With it "stale" is a comparison of
// numbers: a registration is stale when a page has another generation now.
//
// The pages below owned belong to somebody who announces (hca.MemOwned), those
// from there on to nobody (hca.MemForeign).
type host struct {
	*scriptMonitor
	owned uint64 // pages
	yield func() // called wherever another thread of a real machine could come in; may be nil

	mu      sync.RWMutex
	gens    []uint32 // guarded by mu: the generation of each page
	busy    []int    // guarded by mu: announced operations under way on it
	watched []bool   // guarded by mu: foreign memory whose end will be reported
	known   []bool   // guarded by mu: watched, as far as the monitor knows from what is in its ring
	dying   sync.WaitGroup

	changing atomic.Int32 // foreign events that the reader has not taken from the kernel yet

	// What the adapter did. onCall, if set, sees each registration at begin and
	// end of its making and its dropping.
	onRegister   func(p *pin) (end func())
	onDeregister func(p *pin) (end func())
	nextPin      atomic.Int32
	live, made   atomic.Int64
	twice        atomic.Int64
}

// pin is one registration: pages [lo, hi) as they were at one moment.
type pin struct {
	id     int
	lo, hi uint64
	gens   []uint32
	gone   atomic.Bool
}

func newHost(pages, owned uint64) *host {
	return &host{scriptMonitor: &scriptMonitor{}, owned: owned, gens: make([]uint32, pages), busy: make([]int, pages), watched: make([]bool, pages), known: make([]bool, pages)}
}

func (h *host) step() {
	if h.yield != nil {
		h.yield()
	}
}

// pagesOf are the pages of a range made by at.
func pagesOf(g hca.Range) (lo, hi uint64) {
	base := at(0, 0).Addr
	return (g.Addr - base) / pg, (g.End() - base + pg - 1) / pg
}

// generation is what the page holds now, as any thread can see it.
func (h *host) generation(page uint64) uint32 {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.gens[page]
}

// takeAway replaces the pages by new ones, the way their kind of memory goes,
// and returns when the system call would. All of them must have one owner: an
// operation that also takes foreign memory is not how owned memory may end.
func (h *host) takeAway(page, pages uint64) {
	g := at(page, pages)
	if page+pages <= h.owned {
		h.takeOwned(g)
	} else {
		h.takeForeign(g)
	}
}

// takeOwned announces, acts, and settles: while it is under way the memory is
// known to be in nobody's keeping.
func (h *host) takeOwned(g hca.Range) {
	h.mu.Lock()
	h.eachPage(g, func(p uint64) { h.busy[p]++ })
	h.put(g)
	h.counter.Add(hca.CounterStep)
	h.mu.Unlock()
	h.step()
	h.wakeAll()
	h.step()
	h.mu.Lock()
	h.eachPage(g, func(p uint64) { h.gens[p]++ })
	h.mu.Unlock()
	h.step()
	h.mu.Lock()
	h.eachPage(g, func(p uint64) { h.busy[p]-- })
	h.mu.Unlock()
}

// takeForeign is what the kernel does: the probe answers from before the pages
// go until the reader has the event in hand; the reader lets the caller go
// before the event is in the ring and counted. Of pages that nobody watches
// nothing is reported, and what comes after watched pages is not watched.
func (h *host) takeForeign(g hca.Range) {
	h.step()
	h.mu.Lock()
	watched := false
	h.eachPage(g, func(p uint64) {
		watched = watched || h.watched[p]
		h.watched[p] = false
	})
	if watched {
		h.changing.Add(1)
	}
	h.eachPage(g, func(p uint64) { h.gens[p]++ })
	h.mu.Unlock()
	if h.step(); !watched {
		return
	}
	read := make(chan struct{})
	h.dying.Add(1)
	go func() { // the reader
		defer h.dying.Done()
		h.step()
		h.counter.Add(1)
		h.step()
		h.changing.Add(-1)
		close(read)
		h.step()
		h.mu.Lock()
		h.put(g)
		h.eachPage(g, func(p uint64) { h.known[p] = false })
		h.mu.Unlock()
		h.step()
		h.counter.Add(hca.CounterStep - 1)
		h.step()
		h.wakeAll()
	}()
	<-read
}

func (h *host) eachPage(g hca.Range, f func(page uint64)) {
	lo, hi := pagesOf(g)
	for p := lo; p < hi; p++ {
		f(p)
	}
}

func (h *host) wakeAll() {
	h.scriptMonitor.mu.Lock()
	wakes := h.wakes
	h.scriptMonitor.mu.Unlock()
	for _, w := range wakes {
		w()
	}
}

// hostFeed lets others come in wherever the cache reads it.
type hostFeed struct {
	hca.Feed
	h *host
}

// Subscribe opens a feed.
func (h *host) Subscribe(wake func()) (hca.Feed, error) {
	feed, err := h.scriptMonitor.Subscribe(wake)
	return &hostFeed{feed, h}, err
}

// Next reads it.
func (f *hostFeed) Next(buf []hca.Event) int {
	n := f.Feed.Next(buf)
	f.h.step()
	return n
}

// Watch answers by the owner of the pages; a mixture counts as foreign. What the
// monitor takes for watched it does not watch again: until the event of what went
// is in the ring, that can be other memory that nobody watches.
func (h *host) Watch(g hca.Range) hca.Watch {
	lo, hi := pagesOf(g)
	h.step()
	h.mu.Lock()
	busy := 0
	for p := lo; p < hi; p++ {
		busy += h.busy[p]
		if !h.known[p] {
			h.watched[p], h.known[p] = true, true
		}
	}
	h.mu.Unlock()
	h.step()
	switch {
	case busy > 0:
		return hca.Watch{Why: hca.UnkeptUnsettled}
	case hi <= h.owned:
		return hca.Watch{Kind: hca.MemOwned}
	}
	return hca.Watch{Kind: hca.MemForeign, Domains: 1}
}

// UnderWay is the probe.
func (h *host) UnderWay(uint32) bool {
	h.step()
	under := h.changing.Load() > 0
	h.step()
	return under
}

func (h *host) Info() BackendInfo { return BackendInfo{Name: "host"} }

// Register pins the pages as they are at one moment.
func (h *host) Register(g hca.Range, a hca.Access) (*hca.MR, error) {
	p := &pin{id: int(h.nextPin.Add(1))}
	p.lo, p.hi = pagesOf(g)
	end := func() {}
	if h.onRegister != nil {
		end = h.onRegister(p)
	}
	h.step()
	h.mu.RLock()
	p.gens = append(p.gens, h.gens[p.lo:p.hi]...)
	h.mu.RUnlock()
	h.step()
	h.live.Add(1)
	h.made.Add(1)
	end()
	return &hca.MR{Range: g, Access: a, LKey: uint32(p.id), RKey: uint32(p.id), Handle: p}, nil
}

// Deregister drops it.
func (h *host) Deregister(mr *hca.MR) error {
	p := mr.Handle.(*pin)
	end := func() {}
	if h.onDeregister != nil {
		end = h.onDeregister(p)
	}
	h.step()
	if p.gone.Swap(true) {
		h.twice.Add(1)
	}
	h.live.Add(-1)
	end()
	return nil
}

func pinOf(r *Region) *pin { return r.cold.mr.Handle.(*pin) }

// yielder gives a function that gives up the processor a few times, now and
// then, differently for each seed.
func yielder(seed uint64) func() {
	var n atomic.Uint64
	n.Store(seed * 0x9E3779B97F4A7C15)
	return func() {
		x := n.Add(0x9E3779B97F4A7C15)
		x ^= x >> 31
		x *= 0xBF58476D1CE4E5B9
		for i := x >> 61; i > 3; i-- { // half of the times none, else up to four
			runtime.Gosched()
		}
	}
}
