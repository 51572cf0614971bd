package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"example.com/holdfast/hca"
	"example.com/holdfast/regcache"
)

// kind is a kind of memory.
type kind string

const (
	held    kind = "held"
	owned   kind = "owned"
	foreign kind = "foreign"
	unknown kind = "unknown"
)

// way is how a cached Region is asked for.
type way string

const (
	wayGet   way = ""
	wayView  way = "view"  // a View for each thread
	wayBatch way = "batch" // batchLen ranges at a time
)

// batchLen is how many ranges a batch asks for.
const batchLen = 16

// ours are our contenders: the cache on each kind of memory, asked in each way.
var ours = []struct {
	kind  kind
	way   way
	about string
	slow  bool
}{
	{kind: held, about: "holdfast, Go memory that the cache keeps alive (GetBytes)"},
	{kind: owned, about: "holdfast, memory mapped through the monitor (Monitor.Mmap)"},
	{kind: foreign, about: "holdfast, memory mapped by others, seen through userfaultfd", slow: true},
	{kind: unknown, about: "holdfast, memory that nobody watches: registered and dropped every time", slow: true},
	{kind: held, way: wayView, about: "holdfast, Go memory, in a View for each thread"},
	{kind: owned, way: wayView, about: "holdfast, owned memory, in a View for each thread"},
	{kind: foreign, way: wayView, about: "holdfast, foreign memory, in a View for each thread", slow: true},
	{kind: held, way: wayBatch, about: "holdfast, Go memory, 16 ranges at a time (GetBatch), time of each"},
	{kind: owned, way: wayBatch, about: "holdfast, owned memory, 16 ranges at a time"},
	{kind: foreign, way: wayBatch, about: "holdfast, foreign memory, 16 ranges at a time"},
}

// nameOf is the name of one of our contenders.
func nameOf(k kind, w way) string {
	if w == wayGet {
		return string(k)
	}
	return string(k) + "-" + string(w)
}

// doesOurs says which jobs make sense for a contender. "same" and "other" are
// about event channels, which only foreign memory has; what is asked for in Views
// and batches is a few ranges.
func doesOurs(k kind, w way) func(job) bool {
	return func(j job) bool {
		if w != wayGet {
			return j.mode == modeHit && j.regions <= 8 && j.churn == churnNone && j.sizes == sizesSame
		}
		switch j.mode {
		case modeMiss:
			return k == owned || k == foreign
		case modeEnd, modeElsewhere:
			return k == owned
		}
		switch k {
		case foreign:
			return j.churn != churnMix
		case unknown:
			return j.mode == modeHit && j.churn == churnNone
		}
		return j.churn != churnOther
	}
}

// ourContenders are our contenders as processes of the program self.
func ourContenders(self string) (all []*contender) {
	for _, o := range ours {
		name := nameOf(o.kind, o.way)
		c := newContender(name, o.about, self, asOurs, name)
		c.ours, c.slow, c.does = true, o.slow, doesOurs(o.kind, o.way)
		all = append(all, c)
	}
	return all
}

// nothing is a Backend whose registrations cost nothing.
type nothing struct{ made atomic.Int64 }

func (n *nothing) Info() regcache.BackendInfo { return regcache.BackendInfo{Name: "nothing"} }

func (n *nothing) Register(r hca.Range, a hca.Access) (*hca.MR, error) {
	key := uint32(n.made.Add(1))
	return &hca.MR{Range: r, Access: a, LKey: key, RKey: key}, nil
}

func (n *nothing) Deregister(*hca.MR) error { return nil }

// site is where a job takes place: a cache and memory of one kind.
type site struct {
	kind  kind
	cache *regcache.Cache
	made  *nothing
	mem   []byte // ranges of one size, at multiples of stride; nil with mixed sizes
	// With mixed sizes: what is registered, and what of it is asked for. The bytes
	// are there for held memory only, the ranges for other.
	whole, asked           []hca.Range
	wholeBytes, askedBytes [][]byte
	// churnOnce maps 64 KiB, registers it and unmaps it. nil: no such churn.
	churnOnce func() error
	// gone announces the end of memory, and keeps it. nil: there is no such thing.
	gone func(hca.Range)
	// more is memory of which nothing is registered at the beginning, for what
	// happens seldom; Len is 0 where there is none.
	more  hca.Range
	close func() error
}

// absentError is why a contender cannot run here.
type absentError struct{ why error }

func (e absentError) Error() string { return e.why.Error() }

// newCache is a cache of any size over nothing.
func newCache(m regcache.Monitor) (*regcache.Cache, *nothing, error) {
	n := &nothing{}
	c, err := regcache.New(n, regcache.Config{Monitor: m, MaxRegions: 2 * maxRegions, MaxBytes: math.MaxUint64, MaxMerge: 1})
	return c, n, err
}

// sampler is what one goroutine measured, as in work.h.
type sampler struct {
	count  [1 << 16]uint32
	longer []uint64
	last   uint32 // of the generator
	cpu    uint64 // processor time, nanoseconds
}

func (s *sampler) record(ns uint64) {
	if ns < uint64(len(s.count)) {
		s.count[ns]++
	} else {
		s.longer = append(s.longer, ns)
	}
}

var clockBase = time.Now()

// now is the monotonic clock, nanoseconds.
func now() uint64 { return uint64(time.Since(clockBase)) }

// runOurs is the process of one of our contenders: work.h in Go.
func runOurs(name string, args []string, out io.Writer) error {
	k, w := kind(""), wayGet
	for _, o := range ours {
		if nameOf(o.kind, o.way) == name {
			if k, w = o.kind, o.way; len(args) == 1 && args[0] == "about" {
				fmt.Fprintln(out, "about", o.about)
				return nil
			}
		}
	}
	if k == "" {
		return fmt.Errorf("no contender of ours is called %q", name)
	}
	j, err := parseJob(args)
	if err != nil {
		return err
	}
	s, err := openSite(k, j)
	if err != nil {
		if why, ok := err.(absentError); ok {
			fmt.Fprintln(out, "absent", why)
			return nil
		}
		return err
	}
	buf := bufio.NewWriter(out)
	err = s.do(w, j, buf)
	return errors.Join(err, s.close(), buf.Flush())
}

// use registers or hits the i-th range.
func (s *site) use(i uint32) error {
	switch {
	case s.wholeBytes != nil:
		return useBytes(s.cache, s.wholeBytes[i])
	case s.whole != nil:
		return useRange(s.cache, s.whole[i])
	case s.kind == held:
		return useBytes(s.cache, s.mem[uint64(i)*stride:uint64(i)*stride+regionLen])
	}
	return useRange(s.cache, s.at(i))
}

// at is the i-th range of one size.
func (s *site) at(i uint32) hca.Range {
	return hca.Range{Addr: hca.RangeOf(s.mem).Addr + uint64(i)*stride, Len: regionLen}
}

// fill registers the ranges, once each. An event that is just being taken in
// makes a registration be used once and not kept, so what was not kept is
// registered again.
func (s *site) fill(regions uint32) error {
	for began := time.Now(); ; runtime.Gosched() {
		before := s.made.made.Load()
		for i := range regions {
			if err := s.use(i); err != nil {
				return err
			}
		}
		switch {
		case s.kind == unknown || s.made.made.Load() == before: // nothing to keep, or all kept
			return nil
		case time.Since(began) > fillLimit:
			return fmt.Errorf("%s memory is not kept: %d registrations in %v", s.kind, s.made.made.Load(), fillLimit)
		}
	}
}

// fillLimit is how long fill may take, some hundred times what it does take.
const fillLimit = 20 * time.Second

// do registers what the job needs, does it, and prints what came out.
func (s *site) do(way way, j job, w io.Writer) error {
	if err := s.fill(j.regions); err != nil {
		return err
	}
	if j.mode != modeHit && j.mode != modeContend {
		return s.cold(j, w)
	}
	if j.churn != churnNone && s.churnOnce == nil {
		return fmt.Errorf("no churn %q on this memory", j.churn)
	}

	filled := s.made.made.Load()
	samplers := make([]*sampler, j.threads)
	errs := make([]error, j.threads)
	var ready, done, churning sync.WaitGroup
	start := make(chan struct{})
	ready.Add(j.threads)
	for t := range j.threads {
		samplers[t] = &sampler{last: uint32(t)*7919 + 1}
		done.Go(func() {
			runtime.LockOSThread() // or its processor time would not be the goroutine's
			defer runtime.UnlockOSThread()
			defer pin(t)()
			n, first := j.regions, uint64(0)
			if j.apart {
				n /= uint32(j.threads)
				first = uint64(t) * uint64(n) * stride
			}
			run, end, err := s.runner(way, n, first)
			ready.Done()
			<-start
			before := threadTime()
			switch {
			case err != nil:
			case j.mode == modeContend:
				err = s.contend(j, n, samplers[t])
			default:
				samplers[t].last, err = run(samplers[t].last, j.iters)
			}
			samplers[t].cpu = threadTime() - before
			errs[t] = errors.Join(err, end())
		})
	}
	var stop atomic.Bool
	var churned uint64
	var churnErr error
	if j.churn != churnNone {
		ready.Add(1)
		churning.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			defer pin(j.threads)()
			ready.Done()
			<-start
			for ; !stop.Load() && churnErr == nil; churned++ {
				churnErr = s.churnOnce()
			}
		})
	}
	ready.Wait()
	from := now()
	close(start)
	done.Wait()
	took := now() - from
	stop.Store(true)
	churning.Wait()
	for _, err := range append(errs, churnErr) {
		if err != nil {
			return err
		}
	}
	// Of these two kinds nothing can have gone away, so every Get was a hit.
	if (s.kind == held || s.kind == owned) && j.churn == churnNone && s.made.made.Load() != filled {
		return fmt.Errorf("%d registrations where every Get should have been a hit", s.made.made.Load()-filled)
	}
	var last, cpu uint64
	for _, s := range samplers {
		last += uint64(s.last)
		cpu += s.cpu
	}
	if cpu == 0 { // the system has no such clock
		cpu = took * uint64(j.threads)
	}
	fmt.Fprintln(w, "last", last)
	fmt.Fprintf(w, "ran %.1f\n", 100*float64(cpu)/float64(j.threads)/float64(took))
	fmt.Fprintln(w, "churned", churned)
	if j.mode == modeHit {
		fmt.Fprintf(w, "ns %.3f\n", float64(cpu)/float64(j.iters)/float64(j.threads))
		fmt.Fprintf(w, "wall %.3f\n", float64(took)/float64(j.iters))
		return nil
	}
	fmt.Fprintln(w, "clock", clockCost())
	for ns := range samplers[0].count {
		var sum uint64
		for _, s := range samplers {
			sum += uint64(s.count[ns])
		}
		if sum > 0 {
			fmt.Fprintln(w, "sample", ns, sum)
		}
	}
	for _, s := range samplers {
		for _, ns := range s.longer {
			fmt.Fprintln(w, "sample", ns, 1)
		}
	}
	return nil
}

// contend is one goroutine's share of a job in which each hit is timed by itself.
func (s *site) contend(j job, n uint32, out *sampler) (err error) {
	c, x := s.cache, out.last
	defer func() { out.last = x }()
	for end, i := now()+uint64(j.limit), uint64(0); i < j.iters; i++ {
		x = x*1664525 + 1013904223
		at := uint64((x>>8)%n) * stride
		b := s.mem[at : at+regionLen]
		var from, to uint64
		if s.kind == held {
			from = now()
			err = useBytes(c, b)
			to = now()
		} else {
			g := hca.RangeOf(b)
			from = now()
			err = useRange(c, g)
			to = now()
		}
		if err != nil {
			return err
		}
		if out.record(to - from); to > end {
			break
		}
	}
	return nil
}

// cold does what happens seldom: a range that nobody asked for before, the end of
// a range, or of memory that is not registered. After an end comes a hit on
// another range, which has to find out; ranges that have ended are registered
// again off the clock.
func (s *site) cold(j job, w io.Writer) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if s.more.Len == 0 || j.mode != modeMiss && s.gone == nil {
		return fmt.Errorf("nothing of this memory ends alone")
	}
	clock := processTime
	if j.mode == modeMiss {
		clock = threadTime
	}
	const most = 64
	var spent uint64
	more := hca.Range{Addr: s.more.Addr, Len: regionLen}
	for i := uint64(0); i < j.iters; {
		batch := min(j.iters-i, most, uint64(j.regions)-1)
		one := func(k uint64) uint32 { return uint32(1 + (i+k)%uint64(j.regions-1)) }
		before := s.made.made.Load()
		from := clock()
		for k := range batch {
			var err error
			switch j.mode {
			case modeMiss:
				err = useRange(s.cache, more)
				more.Addr += stride
			case modeEnd:
				s.gone(s.at(one(k)))
				err = s.use(0)
			case modeElsewhere:
				s.gone(more)
				err = s.use(0)
			}
			if err != nil {
				return err
			}
		}
		spent += clock() - from
		want := int64(batch)
		switch j.mode {
		case modeEnd:
			for k := range batch {
				if err := s.use(one(k)); err != nil {
					return err
				}
			}
		case modeElsewhere:
			want = 0
		}
		if got := s.made.made.Load() - before; got < want || s.kind == owned && got != want {
			return fmt.Errorf("%d registrations, not %d", got, want)
		}
		i += batch
	}
	fmt.Fprintln(w, "last 0")
	fmt.Fprintf(w, "ns %.3f\n", float64(spent)/float64(j.iters))
	return nil
}

// clockCost is the least time between two readings of the clock, nanoseconds.
func clockCost() uint64 {
	least := uint64(math.MaxUint64)
	for range 10000 {
		from := now()
		least = min(least, now()-from)
	}
	return least
}
