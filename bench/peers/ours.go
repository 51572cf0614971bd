package main

import (
	"bufio"
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

// kinds are our contenders: the cache on each kind of memory.
var kinds = []struct {
	name, about string
	slow        bool
}{
	{name: "held", about: "holdfast, Go memory that the cache keeps alive (GetBytes)"},
	{name: "owned", about: "holdfast, memory mapped through the monitor (Monitor.Mmap)"},
	{name: "foreign", about: "holdfast, memory mapped by others, seen through userfaultfd", slow: true},
	{name: "unknown", about: "holdfast, memory that nobody watches: registered and dropped every time", slow: true},
}

// doesOurs says which jobs make sense on a kind of memory. "same" and "other"
// are about event channels, which only foreign memory has.
func doesOurs(kind string) func(job) bool {
	return func(j job) bool {
		switch kind {
		case "foreign":
			return j.churn != churnMix
		case "unknown":
			return !j.contend
		case "owned":
			return j.churn != churnOther
		}
		return j.churn != churnSame && j.churn != churnOther
	}
}

// ourContenders are our contenders as processes of the program self.
func ourContenders(self string) (all []*contender) {
	for _, k := range kinds {
		c := newContender(k.name, k.about, self, asOurs, k.name)
		c.ours, c.slow, c.does = true, k.slow, doesOurs(k.name)
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
	cache *regcache.Cache
	made  *nothing
	mem   []byte
	// churnOnce maps 64 KiB, registers it and unmaps it. nil: no such churn.
	churnOnce func() error
	close     func() error
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

// useBytes and useRange are one get and put where each is timed by itself.

func useBytes(c *regcache.Cache, b []byte) error {
	r, err := c.GetBytes(b, hca.LocalWrite|hca.RemoteWrite)
	if err != nil {
		return err
	}
	r.Release()
	return nil
}

func useRange(c *regcache.Cache, g hca.Range) error {
	r, err := c.Get(g, hca.LocalWrite|hca.RemoteWrite)
	if err != nil {
		return err
	}
	r.Release()
	return nil
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
func runOurs(kind string, args []string, out io.Writer) error {
	if len(args) == 1 && args[0] == "about" {
		for _, k := range kinds {
			if k.name == kind {
				fmt.Fprintln(out, "about", k.about)
				return nil
			}
		}
		return fmt.Errorf("no kind of memory is called %q", kind)
	}
	j, err := parseJob(args)
	if err != nil {
		return err
	}
	s, err := openSite(kind, j)
	if err != nil {
		if why, ok := err.(absentError); ok {
			fmt.Fprintln(out, "absent", why)
			return nil
		}
		return err
	}
	w := bufio.NewWriter(out)
	err = s.do(kind, j, w)
	if e := s.close(); err == nil {
		err = e
	}
	if e := w.Flush(); err == nil {
		err = e
	}
	return err
}

// fill registers the ranges, once each. An event that is just being taken in
// makes a registration be used once and not kept, so what was not kept is
// registered again.
func (s *site) fill(kind string, regions uint32) error {
	base := hca.RangeOf(s.mem).Addr
	for began := time.Now(); ; runtime.Gosched() {
		before := s.made.made.Load()
		for i := range uint64(regions) {
			var err error
			if kind == "held" {
				err = useBytes(s.cache, s.mem[i*stride:i*stride+regionLen])
			} else {
				err = useRange(s.cache, hca.Range{Addr: base + i*stride, Len: regionLen})
			}
			if err != nil {
				return err
			}
		}
		switch {
		case kind == "unknown" || s.made.made.Load() == before: // nothing to keep, or all kept
			return nil
		case time.Since(began) > fillLimit:
			return fmt.Errorf("%s memory is not kept: %d registrations in %v", kind, s.made.made.Load(), fillLimit)
		}
	}
}

// fillLimit is how long fill may take, some hundred times what it does take.
const fillLimit = 20 * time.Second

// do registers what the job needs, does it, and prints what came out.
func (s *site) do(kind string, j job, w io.Writer) error {
	if err := s.fill(kind, j.regions); err != nil {
		return err
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
		samplers[t] = &sampler{}
		done.Go(func() {
			runtime.LockOSThread() // or its processor time would not be the goroutine's
			defer runtime.UnlockOSThread()
			n, first := j.regions, uint64(0)
			if j.apart {
				n /= uint32(j.threads)
				first = uint64(t) * uint64(n) * stride
			}
			ready.Done()
			<-start
			before := threadTime()
			errs[t] = s.hits(kind == "held", j, uint32(t), n, first, samplers[t])
			samplers[t].cpu = threadTime() - before
		})
	}
	var stop atomic.Bool
	var churned uint64
	var churnErr error
	if j.churn != churnNone {
		ready.Add(1)
		churning.Go(func() {
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
	if (kind == "held" || kind == "owned") && j.churn == churnNone && s.made.made.Load() != filled {
		return fmt.Errorf("%d registrations where every Get should have been a hit", s.made.made.Load()-filled)
	}
	var last, cpu uint64
	for _, s := range samplers {
		last += uint64(s.last)
		cpu += s.cpu
	}
	fmt.Fprintln(w, "last", last)
	if !j.contend {
		if cpu == 0 { // the system has no such clock
			cpu = took * uint64(j.threads)
		}
		fmt.Fprintf(w, "ns %.3f\n", float64(cpu)/float64(j.iters)/float64(j.threads))
		fmt.Fprintf(w, "wall %.3f\n", float64(took)/float64(j.iters))
		return nil
	}
	fmt.Fprintln(w, "clock", clockCost())
	fmt.Fprintln(w, "churned", churned)
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

// hits is one goroutine's share of a job: n ranges, the first of them at offset
// first.
func (s *site) hits(held bool, j job, t, n uint32, first uint64, out *sampler) (err error) {
	c, x := s.cache, t*7919+1
	if held {
		mem := s.mem[first:]
		if !j.contend {
			out.last, err = hitBytes(c, mem, n, j.iters, x)
			return err
		}
		for end, i := now()+uint64(j.limit), uint64(0); i < j.iters; i++ {
			x = x*1664525 + 1013904223
			off := uint64((x>>8)%n) * stride
			from := now()
			err = useBytes(c, mem[off:off+regionLen])
			to := now()
			if err != nil {
				return err
			}
			if out.record(to - from); to > end {
				break
			}
		}
		out.last = x
		return nil
	}
	base := hca.RangeOf(s.mem).Addr + first
	if !j.contend {
		out.last, err = hitRanges(c, base, n, j.iters, x)
		return err
	}
	for end, i := now()+uint64(j.limit), uint64(0); i < j.iters; i++ {
		x = x*1664525 + 1013904223
		g := hca.Range{Addr: base + uint64((x>>8)%n)*stride, Len: regionLen}
		from := now()
		err = useRange(c, g)
		to := now()
		if err != nil {
			return err
		}
		if out.record(to - from); to > end {
			break
		}
	}
	out.last = x
	return nil
}

// hitBytes and hitRanges are the thing measured: nothing but the generator, Get
// and Release, each pair written out where it is used, as a runtime would have it.

func hitBytes(c *regcache.Cache, mem []byte, n uint32, iters uint64, x uint32) (uint32, error) {
	for range iters {
		x = x*1664525 + 1013904223
		off := uint64((x>>8)%n) * stride
		r, err := c.GetBytes(mem[off:off+regionLen], hca.LocalWrite|hca.RemoteWrite)
		if err != nil {
			return x, err
		}
		r.Release()
	}
	return x, nil
}

func hitRanges(c *regcache.Cache, base uint64, n uint32, iters uint64, x uint32) (uint32, error) {
	for range iters {
		x = x*1664525 + 1013904223
		r, err := c.Get(hca.Range{Addr: base + uint64((x>>8)%n)*stride, Len: regionLen}, hca.LocalWrite|hca.RemoteWrite)
		if err != nil {
			return x, err
		}
		r.Release()
	}
	return x, nil
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
