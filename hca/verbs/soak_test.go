//go:build linux && cgo && verbs

package verbs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/internal/childtest"
)

// Random work by several goroutines on one device: memory is mapped,
// registered, transferred, thrown away, prefetched, changed, unmapped and
// deregistered in every order that a program could choose, wrong ones too. Every transfer
// between memory that is there has to bring the right bytes; one that runs
// into memory that is gone has to fail and break its queue pair only. In the
// end nothing is left. .ci/softroce looks through the kernel's log afterwards.
//
// It runs for three seconds, or for as long as HOLDFAST_SOAK says ("2m").
func TestSoak(t *testing.T) {
	adapter(t)
	length := 3 * time.Second
	if s := os.Getenv("HOLDFAST_SOAK"); s != "" {
		var err error
		length, err = time.ParseDuration(s)
		require.NoError(t, err, "HOLDFAST_SOAK")
	}
	childtest.Run(t, length+60*time.Second, nil, func(t *testing.T) {
		start, goroutines := pinned(t), runtime.NumGoroutine()
		opened, err := Open(Config{Name: adapter(t), TrustODP: true})
		require.NoError(t, err)
		d := opened.(*device)
		var wg sync.WaitGroup
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		var mu sync.Mutex
		total := map[string]int{}
		for i := range uint64(3) {
			wg.Go(func() {
				s := &soaker{d: d, rng: rand.New(rand.NewPCG(seed, i)), did: map[string]int{}}
				if err := s.run(time.Now().Add(length)); err != nil {
					t.Errorf("soaker %d: %v", i, err)
				}
				mu.Lock()
				defer mu.Unlock()
				for k, n := range s.did {
					total[k] += n
				}
			})
		}
		wg.Wait()
		t.Logf("did %v", total)
		t.Logf("%+v, events %v", d.Counters(), d.Events())
		must := []string{"pinned", "right bytes", "unmapped"}
		if d.attr.ODP.Support {
			must = append(must, "on demand", "failed as it must", "dropped")
		}
		if d.attr.Rereg.Access {
			must = append(must, "changed")
		}
		if d.attr.ODP.Prefetch {
			must = append(must, "prefetched")
		}
		for _, m := range must {
			require.NotZero(t, total[m], m)
		}
		require.NoError(t, d.Close())
		require.Equal(t, start, pinned(t), "pages stay pinned")
		require.Zero(t, d.Counters().PinnedNow)
		for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > goroutines; runtime.Gosched() {
			require.True(t, time.Now().Before(end), "%d goroutines, %d before", runtime.NumGoroutine(), goroutines)
		}
	})
}

// soaker does random things with memory of its own over a connection of its
// own.
type soaker struct {
	d    *device
	rng  *rand.Rand
	cq   hca.CQ
	a, b hca.QP
	bufs []*soaked
	did  map[string]int
}

// soaked is a registered range: mapped or not.
type soaked struct {
	mem    []byte
	mr     *hca.MR
	mapped bool
}

func (s *soaker) run(until time.Time) (err error) {
	if s.cq, err = s.d.NewCQ(512); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.tearDown()) }()
	if err := s.connect(); err != nil {
		return err
	}
	for time.Now().Before(until) {
		if err := s.step(); err != nil {
			return err
		}
	}
	return nil
}

func (s *soaker) tearDown() error {
	errs := []error{s.a.Close(), s.b.Close()}
	for len(s.bufs) > 0 {
		errs = append(errs, s.drop(0))
	}
	return errors.Join(append(errs, s.cq.Close())...)
}

// connect makes a fresh pair of queue pairs, after closing the last.
func (s *soaker) connect() (err error) {
	if s.a != nil {
		if err := errors.Join(s.a.Close(), s.b.Close()); err != nil {
			return err
		}
		for n := 1; n > 0; { // what was flushed
			var wc [16]hca.WC
			if n, err = s.cq.Poll(wc[:]); err != nil {
				return err
			}
		}
	}
	cfg := hca.QPConfig{SendCQ: s.cq, MaxSend: 16, MaxRecv: 16}
	if s.a, err = s.d.NewQP(cfg); err != nil {
		return err
	}
	if s.b, err = s.d.NewQP(cfg); err != nil {
		return err
	}
	return errors.Join(s.a.Connect(s.b.Addr()), s.b.Connect(s.a.Addr()))
}

func (s *soaker) pick() (int, *soaked) {
	i := s.rng.IntN(len(s.bufs))
	return i, s.bufs[i]
}

func (s *soaker) step() error {
	if len(s.bufs) < 2 {
		return s.add()
	}
	switch n := s.rng.IntN(20); {
	case n < 4 && len(s.bufs) < 12:
		return s.add()
	case n < 10:
		return s.transfer()
	case n < 12: // throw the pages away
		if _, b := s.pick(); b.mapped && b.mr.Access&hca.OnDemand != 0 {
			s.did["dropped"]++
			return unix.Madvise(b.mem, unix.MADV_DONTNEED)
		}
	case n < 14:
		return s.prefetch()
	case n < 15:
		return s.change()
	case n < 17: // unmap under the registration; nobody else maps there before it is dropped
		if _, b := s.pick(); b.mapped {
			s.did["unmapped"]++
			return s.unmap(b)
		}
	default:
		i, _ := s.pick()
		return s.drop(i)
	}
	return nil
}

// add maps and registers. A mapping is an address of its own for as long as
// its registration lives: it is unmapped by mapping it without access.
func (s *soaker) add() error {
	mem, err := unix.Mmap(-1, 0, (2+s.rng.IntN(32))*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	access, kind := everything, "pinned"
	if s.d.attr.ODP.Support && s.rng.IntN(3) > 0 {
		access, kind = access|hca.OnDemand, "on demand"
	}
	from, short := s.rng.IntN(page), s.rng.IntN(page)
	if access&hca.OnDemand != 0 && !s.d.proved {
		from = 0
	}
	mem = mem[:len(mem)-short]
	var mr *hca.MR
	if s.rng.IntN(4) == 0 {
		if err := s.d.PostRegister(s.cq, 77, hca.RangeOf(mem[from:]), access); err != nil {
			return err
		}
		wc, err := s.next()
		if err != nil {
			return err
		}
		if mr, err = wc.MR, wc.Err; err != nil {
			return err
		}
	} else if mr, err = s.d.Register(hca.RangeOf(mem[from:]), access); err != nil {
		return err
	}
	s.did[kind]++
	s.bufs = append(s.bufs, &soaked{mem: mem[:cap(mem)], mr: mr, mapped: true})
	return nil
}

// unmap takes the memory away and keeps the address.
func (s *soaker) unmap(b *soaked) error {
	b.mapped = false
	return unix.Mprotect(b.mem, unix.PROT_NONE)
}

func (s *soaker) drop(i int) error {
	b := s.bufs[i]
	s.bufs[i] = s.bufs[len(s.bufs)-1]
	s.bufs = s.bufs[:len(s.bufs)-1]
	if s.rng.IntN(2) == 0 { // in either order
		return errors.Join(s.d.Deregister(b.mr), unix.Munmap(b.mem))
	}
	return errors.Join(unix.Munmap(b.mem), s.d.Deregister(b.mr))
}

// start is where n bytes of a registration begin: anywhere, or at the
// beginning of a page where the adapter's on-demand paging wants that.
func (s *soaker) start(b *soaked, n uint64) uint64 {
	off := s.rng.Uint64N(b.mr.Range.Len - n + 1)
	if b.mr.Access&hca.OnDemand != 0 && !s.d.proved {
		off &^= page - 1
	}
	return b.mr.Range.Addr + off
}

// transfer moves bytes from one registration into another by one of the
// operations, and checks them.
func (s *soaker) transfer() error {
	i, src := s.pick()
	j, dst := s.pick()
	if i == j || len(src.mem) == 0 {
		return nil
	}
	n := min(src.mr.Range.Len, dst.mr.Range.Len)
	n = 1 + s.rng.Uint64N(n)
	from, to := s.start(src, n), s.start(dst, n)
	gone := !src.mapped && src.mr.Access&hca.OnDemand != 0 || !dst.mapped && dst.mr.Access&hca.OnDemand != 0
	check := src.mapped && dst.mapped
	a, b := bytesAt(pointer(from), int(n)), bytesAt(pointer(to), int(n))
	if src.mapped {
		seed := byte(s.rng.Uint32())
		for k := range a {
			a[k] = byte(k) ^ byte(k>>8)*3 ^ seed
		}
	}
	var err error
	completions := 1
	op := s.rng.IntN(3)
	switch op {
	case 0: // write
		err = s.a.PostSend(hca.SendWR{Op: hca.RDMAWrite, SGE: hca.SGE{Addr: from, Len: n, LKey: src.mr.LKey}, Remote: hca.RemoteAddr{Addr: to, RKey: dst.mr.RKey}})
	case 1: // read
		err = s.a.PostSend(hca.SendWR{Op: hca.RDMARead, SGE: hca.SGE{Addr: to, Len: n, LKey: dst.mr.LKey}, Remote: hca.RemoteAddr{Addr: from, RKey: src.mr.RKey}})
	default: // message
		completions = 2
		err = errors.Join(s.b.PostRecv(hca.RecvWR{SGE: hca.SGE{Addr: to, Len: n, LKey: dst.mr.LKey}}),
			s.a.PostSend(hca.SendWR{Op: hca.Send, SGE: hca.SGE{Addr: from, Len: n, LKey: src.mr.LKey}}))
	}
	if err != nil {
		return err
	}
	var failed hca.WCStatus
	for range completions {
		wc, err := s.next()
		if err != nil {
			return err
		}
		if wc.Status != hca.WCSuccess {
			failed = wc.Status
			break // the other one may never come; the pair is made anew
		}
	}
	switch {
	case failed != hca.WCSuccess && !gone:
		return fmt.Errorf("%d bytes between memory that is there: %w", n, failed)
	case failed == hca.WCSuccess && gone:
		return fmt.Errorf("%d bytes of memory that is gone were transferred", n)
	case failed != hca.WCSuccess:
		s.did["failed as it must"]++
		return s.connect()
	case check:
		if string(a) != string(b) {
			return fmt.Errorf("operation %d of %d bytes from %v (%v) to %v (%v): %s", op, n,
				hca.Range{Addr: from, Len: n}, src.mr.Access, hca.Range{Addr: to, Len: n}, dst.mr.Access, differ(a, b))
		}
		s.did["right bytes"]++
	default:
		s.did["into pages that nobody sees"]++
	}
	return nil
}

// prefetch advises part of an on-demand registration, also where it is gone.
func (s *soaker) prefetch() error {
	_, b := s.pick()
	if b.mr.Access&hca.OnDemand == 0 || !s.d.attr.ODP.Prefetch {
		return nil
	}
	n := 1 + s.rng.Uint64N(b.mr.Range.Len)
	sgl := []hca.SGE{{Addr: b.mr.Range.Addr + s.rng.Uint64N(b.mr.Range.Len-n+1), Len: n, LKey: b.mr.LKey}}
	advice := hca.Advice(s.rng.IntN(3))
	var err error
	if s.rng.IntN(2) == 0 {
		err = s.d.Advise(advice, sgl)
	} else {
		if err := s.d.PostAdvise(s.cq, 78, advice, sgl); err != nil {
			return err
		}
		wc, e := s.next()
		if e != nil {
			return e
		}
		err = wc.Err
	}
	switch {
	case err == nil || errors.Is(err, hca.ErrAgain):
		s.did["prefetched"]++
		return nil
	case b.mapped:
		return err
	}
	s.did["prefetch refused"]++
	return nil
}

// change takes the peer's right to do atomics, which nobody here does, or gives
// it back.
func (s *soaker) change() error {
	_, b := s.pick()
	if !s.d.attr.Rereg.Access {
		return nil
	}
	mr, err := s.d.Reregister(b.mr, b.mr.Range, b.mr.Access^hca.RemoteAtomic)
	if err == nil {
		s.did["changed"]++
		b.mr = mr
	}
	return err
}

// next waits for a completion.
func (s *soaker) next() (hca.WC, error) { return nextOf(s.cq, 30*time.Second) }

// differ says in which runs two equally long slices differ.
func differ(want, got []byte) string {
	var runs []string
	for i := 0; i < len(want); {
		if want[i] == got[i] {
			i++
			continue
		}
		j := i
		for j < len(want) && want[j] != got[j] {
			j++
		}
		runs = append(runs, fmt.Sprintf("[%d,%d) starts with %#x instead of %#x", i, j, got[i], want[i]))
		i = j
	}
	if len(runs) > 5 {
		runs = append(runs[:5], fmt.Sprintf("and %d more runs", len(runs)-5))
	}
	return strings.Join(runs, ", ")
}
