package intercept

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// None of this needs a kernel source, or memory: the ranges are numbers.

func explicit(t *testing.T) *Monitor {
	t.Helper()
	m, err := Explicit()
	require.NoError(t, err)
	t.Cleanup(func() {
		if !m.closed.Load() {
			require.NoError(t, m.Close())
		}
	})
	return m
}

// settle waits for the counter to be settled and gives it.
func settle(t *testing.T, m *Monitor) uint64 {
	t.Helper()
	for began := time.Now(); ; {
		if g := m.counter.Load(); g&hca.Unsettled == 0 {
			return g
		}
		require.Less(t, time.Since(began), 5*time.Second, "the counter does not settle")
	}
}

// drain reads all that there is.
func drain(f hca.Feed) []hca.Event {
	var out []hca.Event
	var buf [3]hca.Event
	for n := f.Next(buf[:]); n > 0; n = f.Next(buf[:]) {
		out = append(out, buf[:n]...)
	}
	return out
}

func pages(first, n uint64) hca.Range {
	return hca.Range{Addr: 1<<32 + first*pageSize, Len: n * pageSize}
}

func TestOwned(t *testing.T) {
	m := explicit(t)
	f, err := m.Subscribe(nil)
	require.NoError(t, err)
	defer f.Close()
	r := pages(0, 8)
	require.Equal(t, hca.Watch{Kind: hca.MemUnknown, Why: hca.UnkeptNoSource}, m.Watch(r))

	require.NoError(t, m.Adopt(r))
	require.Equal(t, hca.MemOwned, m.Watch(r).Kind)
	require.Equal(t, hca.MemOwned, m.Kind(pages(3, 2)))
	require.Equal(t, hca.MemOwned, m.Kind(hca.Range{Addr: r.Addr + 7, Len: 100}))
	require.Equal(t, hca.UnkeptNoSource, m.Watch(pages(7, 2)).Why, "partly somebody else's")

	before := m.Counter().Load()
	op := m.Begin(pages(2, 1), hca.CauseUnmap)
	require.Equal(t, before+hca.CounterStep, m.Counter().Load(), "counted before the caller acts")
	require.Equal(t, []hca.Event{{Range: pages(2, 1), Cause: hca.CauseUnmap}}, drain(f))
	require.Equal(t, hca.UnkeptUnsettled, m.Watch(pages(1, 2)).Why)
	require.Equal(t, hca.MemUnknown, m.Kind(pages(1, 2)))
	require.Equal(t, hca.MemOwned, m.Watch(pages(0, 2)).Kind, "not touched")
	op.End()
	op.End()
	require.Equal(t, before+hca.CounterStep, m.Counter().Load())
	require.Equal(t, hca.UnkeptNoSource, m.Watch(pages(1, 2)).Why, "ownership ended with it")

	require.NoError(t, m.Disown(r))
	require.Equal(t, []hca.Event{{Range: r, Cause: hca.CauseOwner}}, drain(f))
	require.Equal(t, hca.MemUnknown, m.Watch(pages(0, 2)).Kind)
}

func TestDiscardKeepsOwnership(t *testing.T) {
	m := explicit(t)
	require.NoError(t, m.Adopt(pages(0, 8)))
	for _, cause := range []hca.Cause{hca.CauseDiscard, hca.CauseOwner, 99} {
		op := m.Begin(pages(2, 1), cause)
		require.Equal(t, hca.UnkeptUnsettled, m.Watch(pages(0, 8)).Why)
		op.End()
		require.Equal(t, hca.MemOwned, m.Watch(pages(0, 8)).Kind)
	}
}

func TestBadRangeAnnouncesEverything(t *testing.T) {
	m := explicit(t)
	require.NoError(t, m.Adopt(pages(0, 8)))
	op := m.Begin(hca.Range{Addr: 5}, hca.CauseDiscard)
	require.Equal(t, hca.UnkeptUnsettled, m.Watch(pages(0, 1)).Why)
	op.End()
	require.Equal(t, hca.MemOwned, m.Watch(pages(0, 1)).Kind)
	for _, bad := range []hca.Range{{}, {Addr: 1, Len: ^uint64(0)}} {
		require.ErrorIs(t, m.Adopt(bad), hca.ErrInvalid)
		require.ErrorIs(t, m.Disown(bad), hca.ErrInvalid)
		require.ErrorIs(t, m.Settled(bad), hca.ErrInvalid)
		require.Equal(t, hca.UnkeptNotMapped, m.Watch(bad).Why)
	}
	Op{}.End()
}

// More operations at a time than the ledger has room for: everything is under
// way until they are fewer, and nothing is forgotten.
func TestManyOperations(t *testing.T) {
	m := explicit(t)
	require.NoError(t, m.Adopt(pages(0, 8)))
	var ops []Op
	for i := range maxOps + 3 {
		ops = append(ops, m.Begin(pages(100+uint64(i), 1), hca.CauseDiscard))
		if i < maxOps {
			require.Equal(t, hca.MemOwned, m.Watch(pages(0, 1)).Kind)
		} else {
			require.Equal(t, hca.UnkeptUnsettled, m.Watch(pages(0, 1)).Why)
		}
	}
	for _, op := range ops[:maxOps] { // those in the table
		op.End()
	}
	ops[maxOps].End()
	ops[maxOps].End() // once too often
	require.Equal(t, hca.UnkeptUnsettled, m.Watch(pages(0, 1)).Why, "two without a place are under way")
	for _, op := range ops[maxOps:] {
		op.End()
	}
	require.Equal(t, hca.MemOwned, m.Watch(pages(0, 1)).Kind)
	require.Zero(t, m.own.used)
	require.Empty(t, m.own.spill)
}

// Memory that is being taken away is never answered as owned: between the
// announcement and its end there is no moment at which Watch does.
func TestOwnedNeverWhileDying(t *testing.T) {
	m := explicit(t)
	r := pages(0, 1)
	var churn repeating
	churn.start(func() {
		_ = m.Adopt(r)
		m.Begin(r, hca.CauseUnmap).End()
	})
	// The hit protocol on Watch itself: what was owned when asked, and is not
	// announced since, is owned still.
	owned := 0
	for began := time.Now(); owned < 10_000 && time.Since(began) < 10*time.Second; {
		g := m.counter.Load()
		if m.Watch(r).Kind != hca.MemOwned {
			continue
		}
		m.own.Lock()
		if m.counter.Load() == g {
			_, still := m.own.owned.covers(r.Addr, r.End())
			dying := m.own.busy(r.Addr, r.End())
			if !still || dying {
				m.own.Unlock()
				t.Fatal("answered as owned, not announced since, and yet going")
			}
			owned++
		}
		m.own.Unlock()
	}
	churn.end()
	require.Positive(t, owned)
}
