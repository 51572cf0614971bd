package regcache

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// adapters is n backends in a row that write down the order of their calls, and
// fail those that a test chooses.
type adapters struct {
	parts []*nopBackend

	mu    sync.Mutex
	calls []string       // guarded by mu: "+0" registered on 0, "-0" dropped there
	fail  map[string]int // guarded by mu: the calls that fail, and how often
	kind  error
}

func newAdapters(n int) *adapters {
	s := &adapters{fail: map[string]int{}, kind: hca.ErrNoKeys}
	for i := range n {
		b := &nopBackend{info: BackendInfo{Name: fmt.Sprintf("pin on dev%d", i)}}
		b.nextKey.Store(uint32(1000 * (i + 1)))
		b.onRegister = func(hca.Range, hca.Access) error { return s.call("+", i) }
		b.onDeregister = func(*hca.MR) error { return s.call("-", i) }
		s.parts = append(s.parts, b)
	}
	return s
}

func (s *adapters) call(what string, i int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := fmt.Sprint(what, i)
	if s.fail[name] > 0 {
		s.fail[name]--
		s.calls = append(s.calls, name+"!")
		return fmt.Errorf("call %s: %w", name, s.kind)
	}
	s.calls = append(s.calls, name)
	return nil
}

func (s *adapters) join(t *testing.T) Backend {
	t.Helper()
	var bs []Backend
	for _, b := range s.parts {
		bs = append(bs, b)
	}
	j, err := Join(bs...)
	require.NoError(t, err)
	return j
}

func (s *adapters) took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls
	s.calls = nil
	return c
}

// live is what is registered on each.
func (s *adapters) live() []int {
	var n []int
	for _, b := range s.parts {
		live, _, _ := b.counts()
		n = append(n, live)
	}
	return n
}

func TestJoinRefuses(t *testing.T) {
	for name, bs := range map[string][]Backend{
		"none": nil, "nil": {&nopBackend{}, nil}, "page": {&nopBackend{}, &nopBackend{info: BackendInfo{Name: "x", PageSize: 3000}}},
	} {
		_, err := Join(bs...)
		require.ErrorIs(t, err, hca.ErrInvalid, name)
	}
}

func TestJoinOfOneIsThatOne(t *testing.T) {
	b := &nopBackend{}
	j, err := Join(b)
	require.NoError(t, err)
	require.Same(t, b, j)
}

// What is said of several is what is true of all.
func TestJoinInfo(t *testing.T) {
	join := func(infos ...BackendInfo) BackendInfo {
		var bs []Backend
		for _, i := range infos {
			bs = append(bs, &nopBackend{info: i})
		}
		j, err := Join(bs...)
		require.NoError(t, err)
		return j.Info()
	}
	require.Equal(t, BackendInfo{Name: "a + b", PageSize: 65536, MaxRegions: 10, MaxLen: 1 << 30, Pins: 1},
		join(BackendInfo{Name: "a", PageSize: 4096, MaxRegions: 10, MaxLen: 1 << 40, Follows: true}, BackendInfo{Name: "b", PageSize: 65536, MaxRegions: 20, MaxLen: 1 << 30}))
	require.Equal(t, BackendInfo{Name: "a + b + c", PageSize: 4096, MaxRegions: 7, MaxLen: 5, Follows: true},
		join(BackendInfo{Name: "a", Follows: true}, BackendInfo{Name: "b", MaxRegions: 7, MaxLen: 5, Follows: true}, BackendInfo{Name: "c", Follows: true}))
}

// Each adapter that pins is charged for every byte, so the default of MaxBytes is
// divided among them; and it says what it does not reckon with.
func TestJoinDividesTheDefault(t *testing.T) {
	made := func(cfg Config, bs ...Backend) Config {
		j, err := Join(bs...)
		require.NoError(t, err)
		c, err := New(j, cfg)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		return c.Config()
	}
	pin, follows := &nopBackend{}, &nopBackend{info: BackendInfo{Follows: true}}
	two, err := Join(pin, pin)
	require.NoError(t, err)
	one := made(Config{}, pin)
	require.Contains(t, one.String(), "as if this cache were alone")
	three := made(Config{}, two, pin)
	require.Equal(t, one.MaxBytes/3, three.MaxBytes)
	require.Contains(t, three.String(), "divided among 3 adapters")
	require.Equal(t, one.MaxBytes, made(Config{}, pin, follows).MaxBytes, "one that follows pins nothing")
	require.EqualValues(t, 1<<20, made(Config{MaxBytes: 1 << 20}, two).MaxBytes, "what is given is taken as it is")
}

func TestJoinOfJoined(t *testing.T) {
	s := newAdapters(4)
	ab, err := Join(s.parts[0], s.parts[1])
	require.NoError(t, err)
	j, err := Join(ab, s.parts[2], s.parts[3])
	require.NoError(t, err)
	require.Equal(t, "pin on dev0 + pin on dev1 + pin on dev2 + pin on dev3", j.Info().Name)
	mr, err := j.Register(at(0, 1), 0)
	require.NoError(t, err)
	require.Len(t, mr.Handle.(*jointMR).mrs, 4)
	require.NoError(t, j.Deregister(mr))
}

// The range and the access are what all of them give.
func TestJoinGivesWhatAllGive(t *testing.T) {
	wide := &wideBackend{add: 2, access: hca.LocalWrite | hca.RemoteRead | hca.OnDemand}
	wider := &wideBackend{add: 7, access: hca.LocalWrite | hca.RemoteWrite | hca.OnDemand}
	j, err := Join(wider, wide)
	require.NoError(t, err)
	mr, err := j.Register(at(10, 3), hca.LocalWrite)
	require.NoError(t, err)
	require.Equal(t, at(8, 7), mr.Range)
	require.Equal(t, hca.LocalWrite|hca.OnDemand, mr.Access)
	require.NoError(t, j.Deregister(mr))
	require.Zero(t, wide.live+wider.live)
}

// wideBackend registers more than it is asked for.
type wideBackend struct {
	nopBackend
	add    uint64 // pages at either end
	access hca.Access
	live   int
}

func (b *wideBackend) Register(g hca.Range, a hca.Access) (*hca.MR, error) {
	b.live++
	return &hca.MR{Range: hca.Range{Addr: g.Addr - b.add*pg, Len: g.Len + 2*b.add*pg}, Access: a | b.access}, nil
}

func (b *wideBackend) Deregister(*hca.MR) error { b.live--; return nil }

// Each adapter that fails, alone, in a short registration and in one that runs
// in parallel: nothing is left, the order is the reverse, the error names it.
func TestJoinAllOrNothing(t *testing.T) {
	const n = 4
	for _, length := range []uint64{1, parallelFrom / pg} {
		for k := range n {
			t.Run(fmt.Sprintf("pages=%d/%d", length, k), func(t *testing.T) {
				s := newAdapters(n)
				j := s.join(t)
				s.fail[fmt.Sprint("+", k)] = 1
				mr, err := j.Register(at(0, length), 0)
				require.Nil(t, mr)
				require.ErrorIs(t, err, hca.ErrNoKeys)
				require.ErrorContains(t, err, fmt.Sprintf("register on pin on dev%d", k))
				require.ErrorContains(t, err, fmt.Sprintf("adapter %d of %d", k+1, n))
				require.NotContains(t, err.Error(), "\n")
				require.Equal(t, 1, strings.Count(err.Error(), "adapter"), "only what failed is named: %v", err)
				require.Equal(t, []int{0, 0, 0, 0}, s.live())

				calls := s.took()
				undone := slices.DeleteFunc(slices.Clone(calls), func(c string) bool { return c[0] != '-' })
				want := []string{}
				if length == 1 {
					for i := range k {
						require.Equal(t, fmt.Sprint("+", i), calls[i])
						want = append([]string{fmt.Sprint("-", i)}, want...)
					}
				} else {
					for i := range n {
						if i != k {
							want = append([]string{fmt.Sprint("-", i)}, want...)
						}
					}
				}
				require.Equal(t, want, undone)

				mr, err = j.Register(at(0, length), 0) // and it works on as before
				require.NoError(t, err)
				s.took()
				require.NoError(t, j.Deregister(mr))
				require.Equal(t, []string{"-3", "-2", "-1", "-0"}, s.took())
			})
		}
	}
}

// In parallel all that fail are named.
func TestJoinNamesAllThatFail(t *testing.T) {
	s := newAdapters(3)
	s.fail["+0"], s.fail["+2"] = 1, 1
	_, err := s.join(t).Register(at(0, parallelFrom/pg), 0)
	require.ErrorContains(t, err, "dev0")
	require.ErrorContains(t, err, "dev2")
	require.NotContains(t, err.Error(), "dev1")
	require.NotContains(t, err.Error(), "\n")
	require.Equal(t, []int{0, 0, 0}, s.live())
}

// Every pair of a registration that fails and an undoing that fails: both are
// reported, and what can be undone is.
func TestJoinUndoFails(t *testing.T) {
	for k := range 3 {
		for u := range k {
			s := newAdapters(3)
			s.fail[fmt.Sprint("+", k)], s.fail[fmt.Sprint("-", u)] = 1, 1
			_, err := s.join(t).Register(at(0, 1), 0)
			var undo *undoError
			require.ErrorAs(t, err, &undo)
			require.ErrorContains(t, err, fmt.Sprintf("register on pin on dev%d", k))
			require.ErrorContains(t, err, fmt.Sprintf("and then, leaked: deregister on pin on dev%d", u))
			want := []int{0, 0, 0}
			want[u] = 1
			require.Equal(t, want, s.live())
		}
	}
}

// An adapter that answers nonsense is one that failed, and what it registered is
// taken back from it too.
func TestJoinRefusesShortRegistrations(t *testing.T) {
	good := newAdapters(1)
	for name, bad := range map[string]*lazyBackend{
		"nothing": {none: true}, "short": {cut: 1}, "access": {access: hca.LocalWrite},
	} {
		j, err := Join(good.parts[0], bad)
		require.NoError(t, err)
		_, err = j.Register(at(0, 2), hca.LocalWrite|hca.RemoteRead)
		require.ErrorIs(t, err, hca.ErrNotSupported, name)
		require.ErrorContains(t, err, "adapter 2 of 2", name)
		require.Zero(t, bad.live, name)
		require.Equal(t, []int{0}, good.live(), name)
	}
}

// lazyBackend does less than it is asked for.
type lazyBackend struct {
	nopBackend
	none   bool
	cut    uint64
	access hca.Access
	live   int
}

func (b *lazyBackend) Register(g hca.Range, a hca.Access) (*hca.MR, error) {
	if b.none {
		return nil, nil
	}
	b.live++
	return &hca.MR{Range: hca.Range{Addr: g.Addr, Len: g.Len - b.cut}, Access: a &^ b.access}, nil
}

func (b *lazyBackend) Deregister(*hca.MR) error { b.live--; return nil }

// A deregistration that fails on some goes on with the others, once each.
func TestJoinDeregisterFails(t *testing.T) {
	for k := range 3 {
		s := newAdapters(3)
		j := s.join(t)
		mr, err := j.Register(at(0, 1), 0)
		require.NoError(t, err)
		s.took()
		s.fail[fmt.Sprint("-", k)] = 1
		err = j.Deregister(mr)
		require.ErrorContains(t, err, fmt.Sprintf("deregister on pin on dev%d", k))
		require.Len(t, s.took(), 3)
		want := []int{0, 0, 0}
		want[k] = 1
		require.Equal(t, want, s.live())
	}
	for _, mr := range []*hca.MR{nil, {}, {Handle: &jointMR{}}} {
		require.ErrorIs(t, newAdapters(2).join(t).Deregister(mr), hca.ErrInvalid)
	}
}

// A Region carries the keys of each, and its own are those of the first.
func TestJoinKeysOfARegion(t *testing.T) {
	s := newAdapters(3)
	c, err := New(s.join(t), Config{})
	require.NoError(t, err)
	buf := make([]byte, 10*pg)
	r, err := c.GetBytes(buf, hca.LocalWrite|hca.RemoteWrite)
	require.NoError(t, err)
	require.Equal(t, r.LKey(), r.LKeyOn(0))
	for i := range 3 {
		key := uint32(1000*(i+1) + 1)
		require.Equal(t, key, r.MR(i).LKey)
		require.Equal(t, key, r.LKeyOn(i))
		require.Equal(t, key, r.RKeyOn(i))
		require.Equal(t, hca.SGE{Addr: hca.RangeOf(buf).Addr, Len: 10 * pg, LKey: key}, r.SGEOn(i, buf))
		require.Equal(t, hca.RemoteAddr{Addr: hca.RangeOf(buf).Addr, RKey: key}, r.RemoteOn(i, buf))
	}
	require.Zero(t, testing.AllocsPerRun(100, func() { r.SGEOn(2, buf) }))
	require.Panics(t, func() { r.MR(3) })
	require.Panics(t, func() { r.MR(-1) })
	require.Panics(t, func() { r.SGEOn(1, make([]byte, 8)) })
	r.Release()
	require.Equal(t, []int{1, 1, 1}, s.live(), "kept on all")
	require.NoError(t, c.Close())
	require.Equal(t, []int{0, 0, 0}, s.live())

	one, _, _ := rig(t, hca.MemOwned, Config{SweepEvery: -1})
	r = mustGet(t, one, at(0, 1), 0)
	require.Equal(t, r.LKey(), r.LKeyOn(0))
	require.Zero(t, testing.AllocsPerRun(100, func() { r.LKeyOn(0) }))
	require.Panics(t, func() { r.MR(1) })
	r.Release()
}

// The same life of a cache, with every single call to an adapter failing in
// turn, for each kind of failure: no call is lost, nothing is dropped twice,
// what the cache says is registered is what is on every adapter, and what was
// leaked is told.
func TestJoinUnderEveryFault(t *testing.T) {
	for _, kind := range []error{hca.ErrNoKeys, hca.ErrBadAddress, errors.New("broken")} {
		for _, what := range []string{"+", "-"} {
			for i := range 3 {
				for times := 1; times <= 3; times++ {
					t.Run(fmt.Sprintf("%v/%s%d/%d", kind, what, i, times), func(t *testing.T) {
						s := newAdapters(3)
						s.kind = kind
						m := &scriptMonitor{kind: hca.MemOwned}
						c, err := New(s.join(t), Config{Monitor: m, MaxRegions: 5, SweepEvery: -1})
						require.NoError(t, err)
						failed := 0
						for step := range uint64(30) {
							if step == 10 {
								s.mu.Lock()
								s.fail[fmt.Sprint(what, i)] = times
								s.mu.Unlock()
							}
							r, err := c.Get(at(step%7*4, 1+step%2), 0)
							if err != nil {
								failed++
								require.ErrorIs(t, err, kind)
								require.ErrorContains(t, err, fmt.Sprintf("dev%d", i))
								continue
							}
							if step%5 == 0 {
								m.event(at(step%7*4, 1))
							}
							r.Release()
						}
						st := c.Stats()
						if what == "+" && !errors.Is(kind, hca.ErrNoKeys) {
							require.Equal(t, times, failed)
						} else {
							require.Zero(t, failed, "room is made, and it is tried again")
						}
						err = c.Close()
						left := s.live()
						if what == "-" {
							require.ErrorIs(t, err, kind)
							require.ErrorContains(t, err, fmt.Sprintf("dev%d", i))
							require.EqualValues(t, times, c.Stats().DeregisterErrors)
							require.Equal(t, times, left[i])
							left[i] = 0
						} else {
							require.NoError(t, err)
						}
						require.Equal(t, []int{0, 0, 0}, left)
						for _, b := range s.parts {
							_, _, twice := b.counts()
							require.Zero(t, twice)
						}
						require.Zero(t, c.Stats().Registered)
						require.Positive(t, st.Registrations)
					})
				}
			}
		}
	}
}

// A registration that cannot be undone is told even if the next try works.
func TestJoinLeakIsTold(t *testing.T) {
	s := newAdapters(2)
	c, err := New(s.join(t), Config{Monitor: &scriptMonitor{kind: hca.MemOwned}, SweepEvery: -1})
	require.NoError(t, err)
	mustGet(t, c, at(0, 1), 0).Release()
	s.fail["+1"], s.fail["-0"] = 1, 1
	r, err := c.Get(at(4, 1), 0) // no keys on 1; 0 keeps what it cannot undo; the idle Region is given back
	require.NoError(t, err)
	r.Release()
	require.EqualValues(t, 1, c.Stats().DeregisterErrors)
	require.ErrorContains(t, c.Close(), "deregister on pin on dev0")
	require.Equal(t, []int{1, 0}, s.live())
}

// Many goroutines over three adapters of which now and then one fails, with
// memory going away meanwhile: at the end every adapter has what the cache says,
// which is nothing.
func TestJoinStorm(t *testing.T) {
	s := newAdapters(3)
	var n atomic.Uint64
	for i, b := range s.parts {
		b.onRegister = func(hca.Range, hca.Access) error {
			if n.Add(1)%17 == uint64(i) {
				return fmt.Errorf("now and then: %w", []error{hca.ErrNoKeys, hca.ErrNoMemory, hca.ErrBadAddress}[i])
			}
			return nil
		}
		b.onDeregister = nil
	}
	m := &scriptMonitor{kind: hca.MemForeign}
	c, err := New(s.join(t), Config{Monitor: m, MaxRegions: 20, SweepEvery: -1})
	require.NoError(t, err)
	var wg sync.WaitGroup
	var served atomic.Uint64
	for g := range uint64(6) {
		wg.Go(func() {
			for i := range uint64(500) {
				want := at((i*7+g)%50*4, 1+i%3)
				if i%20 == 0 {
					want = at(1<<20+g*4096, parallelFrom/pg)
				}
				r, err := c.Get(want, 0)
				if err == nil {
					if !r.Range().Contains(want) || r.LKeyOn(0) == r.LKeyOn(1) || r.LKeyOn(1) == r.LKeyOn(2) {
						t.Error("not a registration of each")
					}
					r.Release()
					served.Add(1)
				}
				if i%11 == 0 {
					m.event(at(i%50*4, 1))
				}
			}
		})
	}
	wg.Wait()
	st := c.Stats()
	require.Positive(t, st.Failures+st.Retries)
	require.Greater(t, served.Load(), uint64(2000))
	require.NoError(t, c.Close())
	require.Equal(t, []int{0, 0, 0}, s.live())
	for _, b := range s.parts {
		_, _, twice := b.counts()
		require.Zero(t, twice)
	}
}
