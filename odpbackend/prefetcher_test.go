package odpbackend

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/holdfast/hca"
)

const page = 4096

// scripted is a device that can be told to prefetch, and does nothing until
// the test says how a call ends.
type scripted struct {
	hca.Device
	attr   hca.Attr
	refuse func(s hca.SGE) error // what PostAdvise says at once; nil: nothing

	mu    sync.Mutex
	cq    *Queue
	calls map[uint64]call // under way, by id
	made  []call          // all, in order
}

type call struct {
	sge   hca.SGE
	write bool
}

func newScripted() *scripted {
	return &scripted{calls: map[uint64]call{}, attr: hca.Attr{Name: "script0", PageSize: page,
		ODP: hca.ODPCaps{Support: true, Implicit: true, Prefetch: true}}}
}

func (d *scripted) Attr() hca.Attr { return d.attr }

func (d *scripted) NewCQ(n int) (hca.CQ, error) {
	var err error
	d.cq, err = NewQueue(n)
	return d.cq, err
}

func (d *scripted) PostAdvise(cq hca.CQ, id uint64, advice hca.Advice, sgl []hca.SGE) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := call{sge: sgl[0], write: advice == hca.PrefetchWrite}
	d.made = append(d.made, c)
	if d.refuse != nil {
		if err := d.refuse(sgl[0]); err != nil {
			return err
		}
	}
	if _, twice := d.calls[id]; twice || len(sgl) != 1 || cq != d.cq {
		panic(fmt.Sprintf("call %d: twice %v, %d elements", id, twice, len(sgl)))
	}
	if err := d.cq.reserve(); err != nil {
		return err
	}
	d.calls[id] = c
	return nil
}

// end ends the call that is under way over the first byte of r.
func (d *scripted) end(t require.TestingT, r hca.Range, status hca.WCStatus, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, c := range d.calls {
		if c.sge.Range().Contains(hca.Range{Addr: r.Addr, Len: 1}) {
			delete(d.calls, id)
			d.cq.complete(id, status, err)
			return
		}
	}
	require.Fail(t, "no call is under way", "over %v: %v", r, d.calls)
}

// manual is a Prefetcher without its goroutine: the test takes the device's
// completions when it likes.
type manual struct {
	*Prefetcher
	t   *testing.T
	dev *scripted
	q   *Queue
}

func newManual(t *testing.T, cfg PrefetchConfig) manual {
	t.Helper()
	dev := newScripted()
	p, err := newPrefetcher(dev, cfg)
	require.NoError(t, err)
	close(p.done) // nobody runs it
	q, err := NewQueue(64)
	require.NoError(t, err)
	m := manual{p, t, dev, q}
	t.Cleanup(func() {
		s := p.Stats()
		require.Equal(t, s.Requests, s.Warm+s.Done+s.Failed+s.Flushed+uint64(s.Outstanding))
		require.Equal(t, s.WarmedPages, s.UsefulPages+s.UselessPages+uint64(s.UnusedPages))
	})
	return m
}

// pages is a range of n pages from page number i on.
func pages(i, n uint64) hca.Range { return hca.Range{Addr: i * page, Len: n * page} }

func sge(r hca.Range) hca.SGE { return hca.SGE{Addr: r.Addr, Len: r.Len, LKey: 7} }

func (m manual) post(id uint64, r hca.Range, write bool) {
	m.t.Helper()
	require.NoError(m.t, m.Post(m.q, id, sge(r), write))
}

// end has the device end a call, and the Prefetcher hear of it.
func (m manual) end(r hca.Range, err error) {
	m.t.Helper()
	status := hca.WCSuccess
	if err != nil {
		status = hca.WCGeneralErr
	}
	m.dev.end(m.t, r, status, err)
	m.settle()
}

func (m manual) settle() {
	m.t.Helper()
	for {
		more, err := m.progress()
		require.NoError(m.t, err)
		if !more {
			return
		}
	}
}

// warm makes r warm.
func (m manual) warm(r hca.Range, write bool) {
	m.t.Helper()
	m.post(999, r, write)
	m.end(r, nil)
	m.completed(wc{999, nil})
}

// made takes the ranges of the calls that were made since the last time.
func (m manual) made() []hca.Range {
	m.dev.mu.Lock()
	defer m.dev.mu.Unlock()
	var rs []hca.Range
	for _, c := range m.dev.made {
		rs = append(rs, c.sge.Range())
	}
	m.dev.made = nil
	return rs
}

type wc struct {
	id uint64
	is error // nil: success
}

// completed sees that exactly these requests have completed since the last
// time, in this order.
func (m manual) completed(want ...wc) {
	m.t.Helper()
	var got [64]hca.WC
	n, err := m.q.Poll(got[:])
	require.NoError(m.t, err)
	require.Equal(m.t, len(want), n, "completions: %v", got[:n])
	for i, w := range want {
		require.Equal(m.t, w.id, got[i].ID)
		require.Equal(m.t, hca.WCAdvise, got[i].Op)
		if w.is == nil {
			require.NoError(m.t, got[i].Err)
			require.Equal(m.t, hca.WCSuccess, got[i].Status)
			continue
		}
		require.ErrorIs(m.t, got[i].Err, w.is)
		require.NotEqual(m.t, hca.WCSuccess, got[i].Status)
	}
}

func TestPrefetchedMemoryIsAnsweredWithoutACall(t *testing.T) {
	m := newManual(t, PrefetchConfig{})
	m.post(1, pages(10, 4), false)
	m.completed()
	m.end(pages(10, 4), nil)
	m.completed(wc{1, nil})
	require.Equal(t, []hca.Range{pages(10, 4)}, m.made())

	m.post(2, pages(10, 4), false)
	m.post(3, hca.Range{Addr: 11*page + 5, Len: 9}, false)
	m.completed(wc{2, nil}, wc{3, nil})
	require.Empty(t, m.made())
	require.EqualValues(t, 2, m.Stats().Warm)

	// Ready for reading is not ready for writing, but the other way round.
	m.post(4, pages(11, 2), true)
	require.Equal(t, []hca.Range{pages(11, 2)}, m.made())
	m.end(pages(11, 2), nil)
	m.post(5, pages(11, 2), false)
	m.completed(wc{4, nil}, wc{5, nil})
	require.EqualValues(t, 4, m.Stats().WarmPages)

	// Only from the first cold page to the last is asked for, and never a
	// byte beyond the request.
	m.post(6, hca.Range{Addr: 9*page + 100, Len: 3 * page}, false)
	m.post(7, hca.Range{Addr: 12 * page, Len: 2*page + 1}, false)
	require.Equal(t, []hca.Range{
		{Addr: 9*page + 100, Len: page - 100},
		{Addr: 14 * page, Len: 1},
	}, m.made())
	m.end(hca.Range{Addr: 9*page + 100}, nil)
	m.end(pages(14, 1), nil)
	m.completed(wc{6, nil}, wc{7, nil})
}

func TestWarmthBelongsToTheKey(t *testing.T) {
	m := newManual(t, PrefetchConfig{})
	m.warm(pages(0, 4), false)
	m.made()
	other := sge(pages(1, 1))
	other.LKey = 8
	require.NoError(t, m.Post(m.q, 1, other, false))
	require.Equal(t, []hca.Range{pages(1, 1)}, m.made())
	m.end(pages(1, 1), nil)
	m.completed(wc{1, nil})
	s := m.Stats()
	require.EqualValues(t, 4, s.WarmPages)
	require.EqualValues(t, 1, s.UselessPages, "the page that is the other's now")
}

// Buffers side by side, each with a registration of its own, as range by range
// makes them: what one of them has warm, the next does not take from it.
func TestNeighboursOfOtherKeysStayWarm(t *testing.T) {
	m := newManual(t, PrefetchConfig{})
	buffer := func(i uint64) hca.SGE {
		s := sge(pages(4*i, 4))
		s.LKey = uint32(i)
		return s
	}
	for round := range uint64(2) {
		for i := range uint64(40) { // two blocks and a half
			require.NoError(t, m.Post(m.q, i, buffer(i), true))
			if round == 0 {
				m.end(pages(4*i, 4), nil)
			}
			m.completed(wc{i, nil})
			m.Used(buffer(i))
		}
		require.Len(t, m.made(), 40*(1-int(round)), "round %d", round)
	}
	s := m.Stats()
	require.EqualValues(t, 160, s.UsefulPages)
	require.EqualValues(t, 160, s.WarmPages)
	m.Forget(pages(0, 160))
	require.Zero(t, m.Stats().WarmPages)
	require.Zero(t, m.mu.warm.lru.Len())
}

// However many keys share a block, what is remembered of them is bounded.
func TestWarmPartsAreBounded(t *testing.T) {
	m := newManual(t, PrefetchConfig{MaxWarm: 1 << 20}) // 256 pages
	for i := range uint64(1000) {
		s := sge(hca.Range{Addr: i * 100 * page, Len: 1})
		s.LKey = uint32(i)
		require.NoError(t, m.Post(m.q, i, s, true))
		m.end(s.Range(), nil)
		m.completed(wc{i, nil})
		s.Addr += page
		s.LKey += 1000
		require.NoError(t, m.Post(m.q, i, s, true))
		m.end(s.Range(), nil)
		m.completed(wc{i, nil})
		w := m.mu.warm
		require.LessOrEqual(t, w.parts, w.maxParts)
	}
	require.Equal(t, 64, m.mu.warm.parts)
	require.Equal(t, 32, m.mu.warm.lru.Len())
}

func TestRequestsThatTouchBecomeOneCall(t *testing.T) {
	m := newManual(t, PrefetchConfig{InFlight: 1, MaxMerge: 64 * page})
	m.post(0, pages(1000, 1), false) // keeps the device busy
	m.made()

	m.post(1, pages(10, 2), false)
	m.post(2, hca.Range{Addr: 12*page + 50, Len: 10}, false) // the next page
	m.post(3, pages(11, 5), false)                           // overlaps both
	m.post(4, pages(8, 1), false)                            // a page apart
	m.post(5, pages(16, 1), true)                            // touches, for writing
	other := sge(pages(16, 1))
	other.LKey = 8
	require.NoError(t, m.Post(m.q, 6, other, false)) // touches, another registration
	m.post(7, pages(16, 59), false)                  // together longer than MaxMerge
	m.post(8, pages(9, 1), false)                    // touches the first job and the one at 8: joins the first
	require.EqualValues(t, 3, m.Stats().Merged)
	require.Empty(t, m.made())

	want := []hca.Range{pages(9, 7), pages(8, 1), pages(16, 1), pages(16, 1), pages(16, 59)}
	m.end(pages(1000, 1), nil)
	for _, r := range want {
		require.Equal(t, []hca.Range{r}, m.made())
		m.end(r, nil)
	}
	m.completed(wc{0, nil}, wc{1, nil}, wc{2, nil}, wc{3, nil}, wc{8, nil}, wc{4, nil}, wc{5, nil}, wc{6, nil}, wc{7, nil})
	require.EqualValues(t, 6, m.Stats().Advises)
}

func TestWhatBecameWarmWhileItWaitedNeedsNoCall(t *testing.T) {
	m := newManual(t, PrefetchConfig{InFlight: 4})
	m.post(1, pages(10, 8), false)
	m.post(2, pages(12, 2), false) // the device is at it already
	m.post(3, pages(16, 4), false) // and at half of this
	require.Equal(t, []hca.Range{pages(10, 8)}, m.made(), "no two calls share a page")
	m.end(pages(10, 8), nil)
	m.completed(wc{1, nil}, wc{2, nil})
	require.Equal(t, []hca.Range{pages(18, 2)}, m.made())
	m.end(pages(18, 2), nil)
	m.completed(wc{3, nil})
}

func TestNoMoreCallsThanAllowedRunAtATime(t *testing.T) {
	m := newManual(t, PrefetchConfig{InFlight: 3})
	for i := range uint64(5) {
		m.post(i, pages(10*i, 1), false)
	}
	require.Len(t, m.made(), 3)
	m.end(pages(10, 1), nil)
	require.Equal(t, []hca.Range{pages(30, 1)}, m.made())
	for _, i := range []uint64{0, 20, 30, 40} {
		m.end(pages(i, 1), nil)
	}
	m.completed(wc{1, nil}, wc{0, nil}, wc{2, nil}, wc{3, nil}, wc{4, nil})
}

func TestAFullPrefetcherDropsAndNeverWaits(t *testing.T) {
	m := newManual(t, PrefetchConfig{InFlight: 1, MaxRequests: 3, MaxBytes: 10 * page})
	m.warm(pages(0, 1), false)
	m.post(1, pages(10, 1), false)
	m.post(2, pages(20, 1), false)
	require.ErrorIs(t, m.Post(m.q, 3, sge(pages(30, 9)), false), hca.ErrQueueFull, "bytes")
	m.post(4, pages(30, 8), false)
	err := m.Post(m.q, 5, sge(pages(40, 1)), false)
	require.ErrorIs(t, err, hca.ErrQueueFull, "requests")
	require.ErrorContains(t, err, "3 requests or 40 KiB")
	m.post(6, pages(0, 1), false) // what is warm needs no room
	require.ErrorIs(t, m.Post(m.q, 7, sge(pages(50, 11)), false), hca.ErrTooLong)
	require.EqualValues(t, 2, m.Stats().Dropped)
	for _, i := range []uint64{10, 20, 30} {
		m.end(pages(i, 1), nil)
	}
	m.completed(wc{6, nil}, wc{1, nil}, wc{2, nil}, wc{4, nil})
	require.Zero(t, m.Stats().OutstandingBytes)
	m.post(8, pages(40, 10), false)
	m.end(pages(40, 1), nil)
	m.completed(wc{8, nil})

	small, err := NewQueue(1)
	require.NoError(t, err)
	require.NoError(t, m.Post(small, 1, sge(pages(0, 1)), false))
	require.ErrorIs(t, m.Post(small, 2, sge(pages(0, 1)), false), hca.ErrQueueFull, "not polled yet")
	var one [1]hca.WC
	n, err := small.Poll(one[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, m.Post(small, 3, sge(pages(0, 1)), false))
}

func TestAPassingFailureIsTriedAgainAFewTimes(t *testing.T) {
	again := &hca.OpError{Op: "advise", Err: hca.ErrAgain}
	m := newManual(t, PrefetchConfig{Retries: 3})
	m.post(1, pages(1, 1), false)
	for range 2 {
		m.end(pages(1, 1), again)
		m.completed()
	}
	m.end(pages(1, 1), nil)
	m.completed(wc{1, nil})
	require.Len(t, m.made(), 3)

	m.post(2, pages(5, 1), false)
	for range 4 {
		m.completed()
		m.end(pages(5, 1), again)
	}
	m.completed(wc{2, hca.ErrAgain})
	require.Len(t, m.made(), 4)
	require.EqualValues(t, 5, m.Stats().Retries)

	// The same where the device says so at once.
	m.dev.refuse = func(hca.SGE) error { return again }
	m.post(3, pages(6, 1), false)
	m.completed(wc{3, hca.ErrAgain})
	require.Len(t, m.made(), 4)
	m.dev.refuse = func(hca.SGE) error { return hca.ErrBadAddress }
	m.post(4, pages(6, 1), false)
	m.completed(wc{4, hca.ErrBadAddress})
	require.Len(t, m.made(), 1, "any other failure is not tried again")
	m.dev.refuse = nil
	m.post(5, pages(6, 1), false)
	m.end(pages(6, 1), nil)
	m.completed(wc{5, nil})

	none := newManual(t, PrefetchConfig{Retries: -1})
	none.post(1, pages(1, 1), false)
	none.end(pages(1, 1), again)
	none.completed(wc{1, hca.ErrAgain})
}

func TestAnUnknownStatusIsNoSuccess(t *testing.T) { // C42
	m := newManual(t, PrefetchConfig{})
	m.post(1, pages(1, 1), false)
	m.dev.end(t, pages(1, 1), hca.WCStatus(77), nil)
	m.settle()
	var got [2]hca.WC
	n, err := m.q.Poll(got[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, hca.WCStatus(77), got[0].Status)
	require.ErrorContains(t, got[0].Err, "77")
	require.Zero(t, m.Stats().WarmPages)
}

func TestOneBadRequestDoesNotSpoilTheOthers(t *testing.T) {
	m := newManual(t, PrefetchConfig{InFlight: 1})
	m.post(0, pages(1000, 1), false)
	m.post(1, pages(10, 2), false)
	m.post(2, pages(12, 2), false) // not mapped
	m.post(3, pages(14, 2), false)
	m.end(pages(1000, 1), nil)
	m.made()
	m.end(pages(10, 6), hca.ErrBadAddress)
	m.completed(wc{0, nil})
	m.end(pages(10, 2), nil)
	m.end(pages(12, 2), hca.ErrBadAddress)
	m.end(pages(14, 2), nil)
	m.completed(wc{1, nil}, wc{2, hca.ErrBadAddress}, wc{3, nil})
	require.Equal(t, []hca.Range{pages(10, 2), pages(12, 2), pages(14, 2)}, m.made())
	require.EqualValues(t, 5, m.Stats().WarmPages)
}

func TestWhatIsForgottenIsAskedForAgain(t *testing.T) {
	m := newManual(t, PrefetchConfig{})
	m.warm(pages(10, 4), true)
	m.warm(pages(300, 2), true)
	m.made()
	m.Forget(hca.Range{})
	m.Forget(hca.Range{Addr: 11*page + 9, Len: 1})
	m.post(1, pages(10, 1), true)
	m.post(2, pages(12, 2), true)
	m.completed(wc{1, nil}, wc{2, nil})
	m.post(3, pages(10, 4), false)
	require.Equal(t, []hca.Range{pages(11, 1)}, m.made())
	m.end(pages(11, 1), nil)
	m.completed(wc{3, nil})
	m.Forget(hca.Whole)
	require.Zero(t, m.Stats().WarmPages)
	require.EqualValues(t, 7, m.Stats().UselessPages)
}

func TestWhatWasForgottenDuringACallIsNotRemembered(t *testing.T) {
	m := newManual(t, PrefetchConfig{})
	m.post(1, pages(10, 4), false)
	m.Forget(pages(12, 1))
	m.post(2, pages(12, 1), false) // after it went: needs a call of its own
	m.end(pages(10, 4), nil)
	m.completed(wc{1, nil})
	require.Equal(t, []hca.Range{pages(10, 4), pages(12, 1)}, m.made())
	m.end(pages(12, 1), nil)
	m.completed(wc{2, nil})

	// A page beside it is nobody's business.
	m.post(3, pages(20, 4), false)
	m.Forget(pages(24, 9))
	m.Forget(pages(19, 1))
	m.end(pages(20, 4), nil)
	m.completed(wc{3, nil})
	require.EqualValues(t, 5, m.Stats().WarmPages)
}

func TestMemoryThatIsGoneIsNotAskedFor(t *testing.T) {
	m := newManual(t, PrefetchConfig{InFlight: 1})
	m.post(0, pages(1000, 1), false)
	m.made()
	m.post(1, pages(10, 2), false)
	m.post(2, pages(12, 2), false)
	m.post(3, pages(14, 2), false)
	m.post(4, pages(50, 2), false)
	m.Gone(pages(13, 1))
	m.completed(wc{2, hca.ErrBadAddress})
	m.end(pages(1000, 1), nil)
	for _, r := range []hca.Range{pages(10, 2), pages(14, 2), pages(50, 2)} {
		require.Equal(t, []hca.Range{r}, m.made())
		m.end(r, nil)
	}
	m.completed(wc{0, nil}, wc{1, nil}, wc{3, nil}, wc{4, nil})

	// A retry would be too late as well.
	m.post(5, pages(70, 1), false)
	m.Gone(pages(70, 1))
	m.end(pages(70, 1), hca.ErrBadAddress)
	m.completed(wc{5, hca.ErrBadAddress})
	require.Equal(t, []hca.Range{pages(70, 1)}, m.made())
}

func TestUsefulAndUseless(t *testing.T) {
	m := newManual(t, PrefetchConfig{MaxWarm: 8 * page})
	m.warm(pages(0, 4), false)
	m.Used(sge(hca.Range{Addr: page + 1, Len: page})) // pages 1 and 2
	m.Used(sge(pages(1, 1)))                          // again
	m.Used(sge(pages(500, 3)))                        // never prefetched
	m.Used(hca.SGE{})
	s := m.Stats()
	require.EqualValues(t, 2, s.UsefulPages)
	require.EqualValues(t, 2, s.UnusedPages)
	m.Forget(pages(2, 2)) // one used, one not
	s = m.Stats()
	require.EqualValues(t, 1, s.UselessPages)
	require.EqualValues(t, 2, s.WarmPages)

	// Too much warm: the block that was not asked for or used for longest goes.
	m.warm(pages(100, 3), false)
	m.warm(pages(200, 3), false)
	m.Used(sge(pages(1, 1)))
	m.post(1, pages(200, 1), false)
	m.completed(wc{1, nil})
	m.warm(pages(300, 1), false)
	s = m.Stats()
	require.EqualValues(t, 6, s.WarmPages, "pages 0, 1, 200 to 202, 300")
	require.EqualValues(t, 4, s.UselessPages, "and 100 to 102")
	m.made()
	m.post(2, pages(1, 1), false)
	m.post(3, pages(100, 1), false)
	require.Equal(t, []hca.Range{pages(100, 1)}, m.made())
	m.end(pages(100, 1), nil)
	m.completed(wc{2, nil}, wc{3, nil})
	require.Contains(t, m.Stats().String(), "2 useful, 4 useless")
}

func TestWhatIsAskedForStaysLonger(t *testing.T) {
	m := newManual(t, PrefetchConfig{MaxWarm: 4 * page})
	m.warm(pages(0, 2), false)
	m.warm(pages(100, 2), false)
	m.post(1, pages(0, 1), false) // warm already
	m.completed(wc{1, nil})
	m.warm(pages(200, 2), false)
	m.made()
	m.post(2, pages(0, 2), false)
	m.completed(wc{2, nil})
	m.post(3, pages(100, 2), false)
	require.Equal(t, []hca.Range{pages(100, 2)}, m.made())
	m.end(pages(100, 2), nil)
	m.completed(wc{3, nil})
}

func TestScatteredPagesDoNotMakeTheMemoryLarge(t *testing.T) {
	w := newWarmth(page, 64<<20)
	for i := range uint64(100_000) {
		w.add(sge(pages(i*blockPages, 1)), false)
	}
	require.Equal(t, 1024, w.lru.Len(), "64 MiB in blocks a quarter full")
	require.Equal(t, 1024, w.pages)
	require.EqualValues(t, 100_000-1024, w.useless)
}

// events is a monitor as far as a Prefetcher needs one.
type events struct {
	queue  []hca.Event
	wake   func()
	opened int
	err    error
}

func (e *events) Subscribe(wake func()) (hca.Feed, error) {
	if e.err != nil {
		return nil, e.err
	}
	e.wake = wake
	e.opened++
	return e, nil
}

func (e *events) Next(buf []hca.Event) int {
	n := copy(buf, e.queue)
	e.queue = e.queue[n:]
	return n
}

func (e *events) Close() error { e.opened--; return nil }

func TestFollow(t *testing.T) {
	m := newManual(t, PrefetchConfig{InFlight: 1})
	e := &events{}
	require.NoError(t, m.Follow(e))
	all := func() {
		m.Forget(hca.Whole)
		for i := range uint64(6) {
			m.warm(pages(10*i, 1), false)
		}
		m.made()
	}
	all()
	e.queue = []hca.Event{
		{Range: pages(0, 1), Cause: hca.CauseUnmap}, {Range: pages(10, 1), Cause: hca.CauseRemap},
		{Range: pages(20, 1), Cause: hca.CauseDiscard}, {Range: pages(30, 1), Cause: hca.CauseOwner},
	}
	e.wake()
	require.EqualValues(t, 2, m.Stats().WarmPages)
	e.queue = []hca.Event{{Range: pages(40, 1), Cause: hca.CauseUnmap}}
	m.post(1, pages(40, 1), false) // whatever is known now counts, woken or not
	require.Equal(t, []hca.Range{pages(40, 1)}, m.made())
	m.end(pages(40, 1), nil)
	m.completed(wc{1, nil})
	all()
	e.queue = make([]hca.Event, 200)
	for i := range e.queue {
		e.queue[i] = hca.Event{Range: pages(5000, 1), Cause: hca.CauseDiscard}
	}
	e.queue = append(e.queue, hca.Event{Cause: hca.CauseLost, Range: hca.Whole})
	e.wake()
	require.Zero(t, m.Stats().WarmPages)

	// Of what waits, that which was only discarded is still wanted.
	m.post(2, pages(60, 1), false)
	m.post(3, pages(70, 1), false)
	m.post(4, pages(80, 1), false)
	e.queue = []hca.Event{{Range: pages(70, 1), Cause: hca.CauseDiscard}, {Range: pages(80, 1), Cause: hca.CauseUnmap},
		{Range: hca.Whole, Cause: hca.CauseLost}} // the last is no news of any memory in particular
	e.wake()
	m.completed(wc{4, hca.ErrBadAddress})
	m.end(pages(60, 1), nil)
	m.end(pages(70, 1), nil)
	m.completed(wc{2, nil}, wc{3, nil})

	require.ErrorIs(t, m.Follow(&events{err: hca.ErrClosed}), hca.ErrClosed)
	require.NoError(t, m.Close())
	require.Zero(t, e.opened, "the feed is closed")
	late := &events{}
	require.ErrorIs(t, m.Follow(late), hca.ErrClosed)
	require.Zero(t, late.opened)
}

func TestCloseWaitsForTheDevice(t *testing.T) {
	defer goleak.VerifyNone(t)
	dev := newScripted()
	p, err := NewPrefetcher(dev, PrefetchConfig{InFlight: 1})
	require.NoError(t, err)
	q, err := NewQueue(8)
	require.NoError(t, err)
	require.NoError(t, p.Post(q, 1, sge(pages(1, 1)), false))
	require.NoError(t, p.Post(q, 2, sge(pages(5, 1)), false))
	require.NoError(t, p.Post(nil, 3, sge(pages(9, 1)), false))
	require.ErrorIs(t, q.Close(), hca.ErrBusy)

	closed := make(chan error, 1)
	go func() { closed <- p.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	require.NoError(t, q.Wait(ctx), "what was not given to the device completes without it")
	var got [8]hca.WC
	n, err := q.Poll(got[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.EqualValues(t, 2, got[0].ID)
	require.Equal(t, hca.WCWRFlushErr, got[0].Status)
	require.ErrorIs(t, got[0].Err, hca.ErrClosed)
	require.ErrorIs(t, p.Post(q, 4, sge(pages(1, 1)), false), hca.ErrClosed)
	select {
	case <-closed:
		t.Fatal("Close returned while the device was at work")
	default:
	}
	dev.end(t, pages(1, 1), hca.WCSuccess, nil)
	require.NoError(t, <-closed)
	select {
	case <-p.done:
	default:
		t.Fatal("Close returned before the goroutine had ended")
	}
	n, err = q.Poll(got[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.EqualValues(t, 1, got[0].ID)
	require.NoError(t, got[0].Err)
	require.ErrorIs(t, p.Close(), hca.ErrClosed)
	require.ErrorIs(t, p.Post(q, 4, sge(pages(1, 1)), false), hca.ErrClosed)
	require.NoError(t, q.Close())
	require.ErrorIs(t, q.Close(), hca.ErrClosed)
	require.ErrorIs(t, q.Wait(ctx), hca.ErrClosed)
	_, err = dev.cq.Poll(got[:])
	require.ErrorIs(t, err, hca.ErrClosed, "the device's queue is given back")
	require.Zero(t, p.Stats().Outstanding)
}

func TestADeviceThatGoesAwayLeavesNobodyWaiting(t *testing.T) {
	defer goleak.VerifyNone(t)
	dev := newScripted()
	p, err := NewPrefetcher(dev, PrefetchConfig{InFlight: 1})
	require.NoError(t, err)
	q, err := NewQueue(8)
	require.NoError(t, err)
	require.NoError(t, p.Post(q, 1, sge(pages(1, 1)), false))
	require.NoError(t, p.Post(q, 2, sge(pages(5, 1)), false))
	dev.mu.Lock()
	dev.cq.mu.Lock()
	dev.cq.mu.owed = 0 // it forgets what it was told, and closes
	dev.cq.mu.Unlock()
	dev.mu.Unlock()
	require.NoError(t, dev.cq.Close())

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var got [8]hca.WC
	for seen := 0; seen < 2; {
		require.NoError(t, q.Wait(ctx))
		n, err := q.Poll(got[:])
		require.NoError(t, err)
		for _, w := range got[:n] {
			require.ErrorIs(t, w.Err, hca.ErrClosed)
			seen++
		}
	}
	require.ErrorIs(t, p.Post(q, 3, sge(pages(1, 1)), false), hca.ErrClosed)
	require.NoError(t, p.Close())
}

func TestBadPrefetches(t *testing.T) {
	m := newManual(t, PrefetchConfig{})
	require.ErrorIs(t, m.Post(m.q, 1, hca.SGE{Addr: page}, false), hca.ErrInvalid)
	require.ErrorIs(t, m.Post(m.q, 1, hca.SGE{Addr: ^uint64(0), Len: 2}, false), hca.ErrInvalid)
	m.completed()
	require.NoError(t, m.q.Close())
	require.ErrorIs(t, m.Post(m.q, 1, sge(pages(1, 1)), false), hca.ErrClosed)
	_, err := NewQueue(0)
	require.ErrorIs(t, err, hca.ErrInvalid)

	for field, cfg := range map[string]PrefetchConfig{
		"InFlight": {InFlight: -1}, "InFlight is 1025": {InFlight: 1025}, "MaxRequests": {MaxRequests: -1},
	} {
		_, err := NewPrefetcher(newScripted(), cfg)
		require.ErrorIs(t, err, hca.ErrInvalid)
		require.ErrorContains(t, err, "PrefetchConfig."+field)
	}
	dev := newScripted()
	dev.attr.ODP.Prefetch = false
	_, err = NewPrefetcher(dev, PrefetchConfig{})
	require.ErrorIs(t, err, hca.ErrNotSupported)
}

func TestWarmRequestsDoNotAllocate(t *testing.T) {
	m := newManual(t, PrefetchConfig{})
	m.warm(pages(0, 200), false)
	var got [4]hca.WC
	s := sge(pages(3, 150))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if err := m.Post(m.q, 1, s, false); err != nil {
			panic(err)
		}
		m.Used(s)
		if n, err := m.q.Poll(got[:]); n != 1 || err != nil {
			panic(errors.Join(err, fmt.Errorf("%d completions", n)))
		}
	}))
}
