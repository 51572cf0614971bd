package main

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"time"
)

// The work. Every contender maps Regions ranges, registers each once, and then
// each of its threads gets and puts ranges that a linear congruential generator
// picks: x = x*1664525 + 1013904223, range number (x>>8) mod Regions, starting at
// thread number * 7919 + 1. The ranges are 64 KiB, one every 128 KiB, or of mixed
// sizes (layout).
const (
	regionLen = 64 << 10
	stride    = 128 << 10
)

// job is one piece of the work, done by one contender in one process.
type job struct {
	mode    mode
	regions uint32
	threads int
	apart   bool // each thread has regions/threads ranges to itself
	iters   uint64
	churn   churn
	limit   time.Duration // with modeContend: stop then, however few were done
	sizes   sizes
}

// mode is what is done and what is timed.
type mode string

const (
	modeHit       mode = "hit"       // hits, all together
	modeContend   mode = "contend"   // hits, each by itself
	modeMiss      mode = "miss"      // gets and puts of ranges that nobody asked for before
	modeEnd       mode = "end"       // the end of a registered range, and the next hit on another
	modeElsewhere mode = "elsewhere" // the end of memory that is not registered, and the next hit
)

// sizes is how long the ranges are, and what is asked for of them.
type sizes string

const (
	sizesSame   sizes = "same"   // 64 KiB each
	sizesMixed  sizes = "mixed"  // 4 KiB to 1 GiB, unaligned
	sizesInside sizes = "inside" // the same; asked for are 4 KiB in the middle
)

// churn is what somebody else does meanwhile, without pause: map 64 KiB,
// register, unmap.
type churn string

const (
	churnNone  churn = "none"
	churnMix   churn = "mix"   // memory of the monitor's own; the peers have one kind only
	churnSame  churn = "same"  // foreign memory on the event channel of the memory that is hit
	churnOther churn = "other" // foreign memory on another event channel
)

// layout gives the i-th range of mixed sizes: at which offset its piece of memory
// begins, how long that piece is, and where in it the range lies. The first 1024
// are of 4 KiB times every power of two up to 1 GiB in turn; of the others half
// are of 4 KiB, a quarter of 8 KiB, and so on. All begin at odd places in a page
// and are a little shorter than a power of two.
func layout(i uint32) (piece, start, length uint64) {
	k := i % 19
	if i >= 1024 {
		k = min(uint32(bits.TrailingZeros32(i)), 18)
	}
	full := uint64(4096) << k
	return full + 8192, uint64(i) * 1000003 % 4096, full - uint64(i)*7919%1024
}

// inside is the part of a range of the given length that is asked for.
func inside(length uint64) (start, n uint64) {
	return length / 2, min(4096, length-length/2)
}

// args are the job as the arguments of a contender's process. It answers on
// standard output with lines of
//
//	ns N              processor time of one get and put of one thread, nanoseconds;
//	                  for "end" and "elsewhere" that of the process
//	wall N            time from start to end, divided by a thread's gets and puts, nanoseconds
//	last N            sum of the generators' last values: the same for who did the same
//	ran N             share of the time that the threads had a processor, percent
//	sample N COUNT    so many hits took N nanoseconds ("contend" only)
//	clock N           the least time between two readings of the clock ("contend" only)
//	churned N         how often the churner went round
//	absent WHY        this contender cannot run here, or not do that
//
// and, asked for "about", with one line "about NAME VERSION".
func (j job) args() []string {
	apart := "0"
	if j.apart {
		apart = "1"
	}
	return []string{string(j.mode), fmt.Sprint(j.regions), fmt.Sprint(j.threads), apart, fmt.Sprint(j.iters), string(j.churn), fmt.Sprint(int64(j.limit)), string(j.sizes)}
}

// parseJob is the inverse of args.
func parseJob(args []string) (j job, err error) {
	if len(args) != 8 {
		return j, fmt.Errorf("not a job: %q", args)
	}
	number := func(s string) uint64 {
		n, e := strconv.ParseUint(s, 10, 63)
		if e != nil && err == nil {
			err = e
		}
		return n
	}
	j = job{
		mode:    mode(args[0]),
		regions: uint32(number(args[1])),
		threads: int(number(args[2])),
		apart:   args[3] == "1",
		iters:   number(args[4]),
		churn:   churn(args[5]),
		limit:   time.Duration(number(args[6])),
		sizes:   sizes(args[7]),
	}
	switch {
	case err != nil:
	case j.mode != modeHit && j.mode != modeContend && j.mode != modeMiss && j.mode != modeEnd && j.mode != modeElsewhere:
		err = fmt.Errorf("not a job: %q", args)
	case j.sizes != sizesSame && j.sizes != sizesMixed && j.sizes != sizesInside:
		err = fmt.Errorf("no such sizes: %q", j.sizes)
	case j.regions < 1 || j.threads < 1 || j.apart && int(j.regions) < j.threads:
		err = fmt.Errorf("no such work: %d regions, %d threads", j.regions, j.threads)
	}
	return j, err
}

// name is the job in the words of a benchmark's name.
func (j job) name() string {
	s := fmt.Sprintf("n=%d/threads=%d", j.regions, j.threads)
	if j.mode != modeHit && j.mode != modeContend {
		return fmt.Sprintf("%s/n=%d", j.mode, j.regions)
	}
	if j.threads > 1 && j.regions > 1 {
		if j.apart {
			s += "/regions=apart"
		} else {
			s += "/regions=same"
		}
	}
	if j.sizes != sizesSame {
		s += "/sizes=" + string(j.sizes)
	}
	if j.mode == modeContend || j.churn != churnNone {
		s += "/churn=" + string(j.churn)
	}
	return s
}

// busy is how many threads the job keeps busy at a time.
func (j job) busy() int {
	if j.churn != churnNone {
		return j.threads + 1
	}
	return j.threads
}

// key is the job among all jobs.
func (j job) key() string { return string(j.mode) + "/" + j.name() }

// maxRegions is how many ranges there may be: as many as our caches keep.
const maxRegions = 1 << 20

// hitJobs are the pieces of the first part.
func hitJobs(counts []uint32, iters uint64) (jobs []job) {
	for _, regions := range counts {
		for _, j := range []job{{threads: 1}, {threads: 2}, {threads: 2, apart: true}, {threads: 1, churn: churnMix}} {
			j.regions = regions
			jobs = append(jobs, j)
		}
	}
	for _, s := range []sizes{sizesMixed, sizesInside} {
		for _, regions := range []uint32{16, 1024} {
			jobs = append(jobs, job{regions: regions, threads: 1, sizes: s})
		}
	}
	return filled(jobs, modeHit, iters)
}

// frontJobs are the pieces of the second part: what a View holds, and what a batch
// asks for.
func frontJobs(iters uint64) []job {
	return filled([]job{
		{regions: 1, threads: 1},
		{regions: 8, threads: 1},
		{regions: 8, threads: 2},
		{regions: 8, threads: 2, apart: true},
	}, modeHit, iters)
}

// coldJobs are the pieces of the third part.
func coldJobs(counts []uint32, iters uint64) (jobs []job) {
	for _, m := range []mode{modeMiss, modeEnd, modeElsewhere} {
		for _, regions := range counts {
			jobs = append(jobs, job{mode: m, regions: regions, threads: 1})
		}
		if m == modeEnd && slices.Max(counts) >= 65536 {
			jobs = append(jobs, job{mode: m, regions: 1_000_000, threads: 1})
		}
	}
	return filled(jobs, "", min(iters, 50_000))
}

// contentionJobs are the pieces of the last part: one hot Region, and a churner
// beside one thread that hits.
func contentionJobs(iters uint64) []job {
	return filled([]job{
		{regions: 1, threads: 1},
		{regions: 1, threads: 2},
		{regions: 1, threads: 4},
		{regions: 16, threads: 1},
		{regions: 16, threads: 1, churn: churnMix},
		{regions: 16, threads: 1, churn: churnSame},
		{regions: 16, threads: 1, churn: churnOther},
	}, modeContend, iters)
}

// filled gives jobs what they have in common.
func filled(jobs []job, m mode, iters uint64) []job {
	for i := range jobs {
		j := &jobs[i]
		j.iters = iters
		if m != "" {
			j.mode = m
		}
		if j.churn == "" {
			j.churn = churnNone
		}
		if j.sizes == "" {
			j.sizes = sizesSame
		}
		if j.mode == modeContend {
			j.limit = 150 * time.Millisecond
		}
	}
	return jobs
}

// in says a job in words.
func (j job) in() string {
	s := fmt.Sprintf("%d ranges", j.regions)
	if j.regions == 1 {
		s = "1 range"
	}
	switch j.mode {
	case modeMiss:
		return s + ", and one more"
	case modeEnd:
		return "one of " + s + " ends"
	case modeElsewhere:
		return s + ", an end elsewhere"
	}
	switch j.sizes {
	case sizesMixed:
		s += " of 4 KiB to 1 GiB"
	case sizesInside:
		s += " of 4 KiB to 1 GiB, 4 KiB inside"
	}
	if j.threads == 1 {
		s += ", 1 thread"
	} else {
		s += fmt.Sprintf(", %d threads", j.threads)
	}
	switch {
	case j.apart:
		s += ", each its own"
	case j.threads > 1 && j.regions > 1:
		s += ", the same"
	}
	switch j.churn {
	case churnMix:
		s += ", churn"
	case churnSame:
		s += ", foreign churn on the same channel"
	case churnOther:
		s += ", foreign churn on another channel"
	}
	return s
}
