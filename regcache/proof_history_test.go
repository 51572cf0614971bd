package regcache

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// The cache as a sequential object. docs/specification.md says the same at more
// length.
//
// There are pages, each with a generation that counts how often its memory was
// taken away, and registrations, each of some pages, which remembers their
// generations at the one moment when it was made. Every operation takes effect
// at one moment between its call and its return:
//
//	Look(page)          answers with the generation of the page.
//	TakeAway(pages)     raises the generation of each.
//	Register(id, pages) remembers their generations. The cache makes it inside
//	                    a Get. A number is never used twice.
//	Get(pages)          answers with a registration that covers them, that
//	                    exists, and whose pages all have the generation that it
//	                    remembers. It counts one holder more.
//	Release(id)         counts one holder less; there must be one.
//	Deregister(id)      ends the registration, which must exist and have no
//	                    holder.
//
// That is all that is promised about staleness, in both directions. A Get that
// begins after a TakeAway returned cannot be put before it, so it does not
// answer with what was there before; neither can a Get that begins after
// somebody saw (Look) that the memory is new, even while the TakeAway has not
// returned. And a Get that runs beside a TakeAway may answer with either.
//
// A history is what several goroutines did, with the order of calls and returns;
// porcupine looks for moments that explain it.

// lookup, takeaway and so on are the operations of a history.
type histKind uint8

const (
	histLook histKind = iota
	histTakeAway
	histRegister
	histGet
	histRelease
	histDeregister
)

const (
	histPages = 4
	histPins  = 120 // registrations in one history, at most
)

type histOp struct {
	kind   histKind
	id     int // of the registration
	lo, hi uint64
	gens   [histPages]uint32 // Look: of page lo. Register and Get: of the registration's pages
	covers bool              // Get: whether the registration covers what was asked for
}

// histState is comparable, as porcupine wants it.
type histState struct {
	gens [histPages]uint32
	pins [histPins]uint8 // 0: not made; pinEnded; else holders + 1
}

const pinEnded = 255

func (op histOp) step(s histState) (bool, histState) {
	same := func() bool {
		for p := op.lo; p < op.hi; p++ {
			if s.gens[p] != op.gens[p] {
				return false
			}
		}
		return true
	}
	pin := &s.pins[op.id]
	exists := *pin != 0 && *pin != pinEnded
	ok := false
	switch op.kind {
	case histLook:
		ok = same()
	case histTakeAway:
		ok = true
		for p := op.lo; p < op.hi; p++ {
			s.gens[p]++
		}
	case histRegister:
		ok = *pin == 0 && same()
		*pin = 1
	case histGet:
		ok = exists && op.covers && same()
		*pin++
	case histRelease:
		ok = exists && *pin > 1
		*pin--
	case histDeregister:
		ok = exists && *pin == 1
		*pin = pinEnded
	}
	return ok, s
}

func (op histOp) String() string {
	name := [...]string{"Look", "TakeAway", "Register", "Get", "Release", "Deregister"}[op.kind]
	switch op.kind {
	case histLook, histTakeAway:
		return fmt.Sprintf("%s pages [%d,%d) generation %d", name, op.lo, op.hi, op.gens[op.lo])
	case histRegister, histGet:
		return fmt.Sprintf("%s #%d pages [%d,%d) generations %v", name, op.id, op.lo, op.hi, op.gens[op.lo:op.hi])
	}
	return fmt.Sprintf("%s #%d", name, op.id)
}

func histModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return histState{} },
		Step: func(state, input, _ any) (bool, any) {
			ok, next := input.(histOp).step(state.(histState))
			return ok, next
		},
		DescribeOperation: func(input, _ any) string { return input.(histOp).String() },
		DescribeState:     func(state any) string { return fmt.Sprint(state.(histState).gens) },
	}
}

// recorder writes a history down. Its clock counts calls and returns, so the
// order is that in which they happened.
type recorder struct {
	clock atomic.Int64
	mu    sync.Mutex
	ops   []porcupine.Operation // guarded by mu
}

func (r *recorder) begin() int64 { return r.clock.Add(1) }

func (r *recorder) end(client int, call int64, op histOp) {
	ret := r.clock.Add(1)
	r.mu.Lock()
	r.ops = append(r.ops, porcupine.Operation{ClientId: client, Input: op, Call: call, Return: ret})
	r.mu.Unlock()
}

func opOfPin(kind histKind, p *pin) histOp {
	op := histOp{kind: kind, id: p.id, lo: p.lo, hi: p.hi}
	copy(op.gens[p.lo:], p.gens)
	return op
}

// history runs a random program of several goroutines and gives what happened.
func history(t testing.TB, seed uint64, ownedPages uint64, omit omission) ([]porcupine.Operation, Stats) {
	h := newHost(histPages, ownedPages)
	h.yield = yielder(seed)
	rec := &recorder{}
	var calls atomic.Int64 // clients of the backend's calls, for pictures of a history
	h.onRegister = func(p *pin) func() {
		call, client := rec.begin(), 100+int(calls.Add(1))
		return func() { rec.end(client, call, opOfPin(histRegister, p)) }
	}
	h.onDeregister = func(p *pin) func() {
		call, client := rec.begin(), 100+int(calls.Add(1))
		return func() { rec.end(client, call, opOfPin(histDeregister, p)) }
	}
	c, err := New(h, Config{Monitor: h, MaxRegions: 2 + int(seed%4), SweepEvery: -1})
	require.NoError(t, err)
	c.omit = omit

	// In every other program memory is taken away seldom, so that there are
	// hits to be wrong.
	takes := 1 + 2*int(seed%2)
	worker := func(id int) {
		rnd := rand.New(rand.NewPCG(seed, uint64(id)))
		var held []*Region
		release := func(i int) {
			r := held[i]
			held = append(held[:i], held[i+1:]...)
			op := opOfPin(histRelease, pinOf(r))
			call := rec.begin()
			r.Release()
			rec.end(id, call, op)
		}
		for range 9 {
			lo := rnd.Uint64N(histPages)
			n := min(1+rnd.Uint64N(2), histPages-lo)
			switch k := rnd.IntN(9 + takes); {
			case k < 5:
				call := rec.begin()
				r, err := c.Get(at(lo, n), hca.Access(rnd.Uint32N(2)))
				if err != nil {
					t.Error(err)
					return
				}
				op := opOfPin(histGet, pinOf(r))
				op.covers = op.lo <= lo && lo+n <= op.hi && r.Range().Contains(at(lo, n))
				rec.end(id, call, op)
				held = append(held, r)
			case k < 7 && len(held) > 0:
				release(rnd.IntN(len(held)))
			case k >= 9:
				if lo < ownedPages {
					n = min(n, ownedPages-lo) // one call takes memory of one owner
				}
				call := rec.begin()
				h.takeAway(lo, n)
				rec.end(id, call, histOp{kind: histTakeAway, lo: lo, hi: lo + n})
			default:
				call := rec.begin()
				op := histOp{kind: histLook, lo: lo, hi: lo + 1}
				op.gens[lo] = h.generation(lo)
				rec.end(id, call, op)
			}
		}
		for len(held) > 0 {
			release(0)
		}
	}
	var wg sync.WaitGroup
	for id := range 4 {
		wg.Go(func() { worker(id) })
	}
	wg.Wait()
	h.dying.Wait()
	require.NoError(t, c.Close())
	require.Zero(t, h.live.Load(), "registrations left, seed %d", seed)
	require.Zero(t, h.twice.Load(), "dropped twice, seed %d", seed)
	rec.mu.Lock()
	defer rec.mu.Unlock()
	ended := map[int]int{}
	for _, o := range rec.ops {
		if op := o.Input.(histOp); op.kind == histDeregister {
			ended[op.id]++
		}
	}
	for id := range int(h.made.Load()) {
		require.Equal(t, 1, ended[id+1], "registration #%d, seed %d", id+1, seed)
	}
	require.Less(t, int(h.nextPin.Load()), histPins, "the program is too long for the model")
	return rec.ops, c.Stats()
}

// proofSize is how much of something to do: quick for every run, a tenth of it
// with -short, and full, which takes minutes, if HOLDFAST_PROOF=full is in the
// environment (then -timeout has to be raised too).
func proofSize(t testing.TB, quick, full int) int {
	switch {
	case os.Getenv("HOLDFAST_PROOF") == "full":
		return full
	case testing.Short():
		return max(quick/10, 1)
	}
	return quick
}

// The cache is linearizable as specified above: on owned memory, on foreign
// memory, and on both at once.
func TestHistoryIsLinearizable(t *testing.T) {
	for name, owned := range map[string]uint64{"owned": histPages, "foreign": 0, "both": histPages / 2} {
		t.Run(name, func(t *testing.T) {
			n := proofSize(t, 1000, 50000)
			kinds, hits := map[histKind]int{}, uint64(0)
			for seed := range uint64(n) {
				ops, stats := history(t, seed, owned, 0)
				hits += stats.Hits
				for _, o := range ops {
					kinds[o.Input.(histOp).kind]++
				}
				res, info := porcupine.CheckOperationsVerbose(histModel(), ops, time.Minute)
				if res != porcupine.Ok {
					at := filepath.Join(os.TempDir(), fmt.Sprintf("holdfast-history-%s-%d.html", name, seed))
					_ = porcupine.VisualizePath(histModel(), info, at)
					t.Fatalf("seed %d: %v; the picture is %s", seed, res, at)
				}
			}
			t.Logf("%d histories: %d Get (%d hits), %d Release, %d TakeAway, %d Look, %d Register, %d Deregister",
				n, kinds[histGet], hits, kinds[histRelease], kinds[histTakeAway], kinds[histLook], kinds[histRegister], kinds[histDeregister])
		})
	}
}

// A check that cannot fail proves nothing: with any part of the protocol left
// out, a history that nothing explains is found soon.
func TestHistoryFindsABrokenProtocol(t *testing.T) {
	for _, tc := range []struct {
		name  string
		owned uint64
		omit  omission
	}{
		{"applied", histPages, omitApplied},
		{"parity", 0, omitParity},
		{"probe", 0, omitProbe},
		{"second look", 0, omitSecondLook},
	} {
		t.Run(tc.name, func(t *testing.T) {
			const most = 20000
			for seed := range uint64(most) {
				ops, _ := history(t, seed, tc.owned, tc.omit)
				switch porcupine.CheckOperationsTimeout(histModel(), ops, time.Minute) {
				case porcupine.Illegal:
					t.Logf("found by history %d", seed+1)
					return
				case porcupine.Unknown:
					t.Fatal("not decided within a minute")
				}
			}
			t.Fatalf("%d histories without this part were all explained", most)
		})
	}
}
