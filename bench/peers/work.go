package main

import (
	"fmt"
	"strconv"
	"time"
)

// The work. Every contender maps Regions ranges of 64 KiB, one every 128 KiB,
// registers each once, and then each of its threads gets and puts ranges that a
// linear congruential generator picks: x = x*1664525 + 1013904223, range number
// (x>>8) mod Regions, starting at thread number * 7919 + 1.
const (
	regionLen = 64 << 10
	stride    = 128 << 10
)

// job is one piece of the work, done by one contender in one process.
type job struct {
	contend bool // time every hit by itself, not all together
	regions uint32
	threads int
	apart   bool // each thread has regions/threads ranges to itself
	iters   uint64
	churn   churn
	limit   time.Duration // with contend: stop then, however few were done
}

// churn is what somebody else does meanwhile, without pause: map 64 KiB,
// register, unmap.
type churn string

const (
	churnNone  churn = "none"
	churnMix   churn = "mix"   // memory of the kind that is hit; foreign: wherever the kernel puts it
	churnSame  churn = "same"  // foreign memory on the event channel of the memory that is hit
	churnOther churn = "other" // foreign memory on another event channel
)

// args are the job as the arguments of a contender's process. It answers on
// standard output with lines of
//
//	ns N              processor time of one get and put of one thread, nanoseconds
//	wall N            time from start to end, divided by a thread's gets and puts, nanoseconds
//	last N            sum of the generators' last values: the same for who did the same
//	sample N COUNT    so many hits took N nanoseconds (contend only)
//	clock N           the least time between two readings of the clock (contend only)
//	churned N         how often the churner went round (contend only)
//	absent WHY        this contender cannot run here
//
// and, asked for "about", with one line "about NAME VERSION".
func (j job) args() []string {
	mode := "hit"
	if j.contend {
		mode = "contend"
	}
	apart := "0"
	if j.apart {
		apart = "1"
	}
	return []string{mode, fmt.Sprint(j.regions), fmt.Sprint(j.threads), apart, fmt.Sprint(j.iters), string(j.churn), fmt.Sprint(int64(j.limit))}
}

// parseJob is the inverse of args.
func parseJob(args []string) (j job, err error) {
	if len(args) != 7 || args[0] != "hit" && args[0] != "contend" {
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
		contend: args[0] == "contend",
		regions: uint32(number(args[1])),
		threads: int(number(args[2])),
		apart:   args[3] == "1",
		iters:   number(args[4]),
		churn:   churn(args[5]),
		limit:   time.Duration(number(args[6])),
	}
	if err == nil && (j.regions < 1 || j.threads < 1 || j.apart && int(j.regions) < j.threads) {
		err = fmt.Errorf("no such work: %d regions, %d threads", j.regions, j.threads)
	}
	return j, err
}

// name is the job in the words of a benchmark's name.
func (j job) name() string {
	s := fmt.Sprintf("n=%d/threads=%d", j.regions, j.threads)
	if j.threads > 1 && j.regions > 1 {
		if j.apart {
			s += "/regions=apart"
		} else {
			s += "/regions=same"
		}
	}
	if j.contend {
		s += "/churn=" + string(j.churn)
	}
	return s
}

// maxRegions is how many ranges there may be: as many as our caches keep.
const maxRegions = 1 << 20

// hitJobs are the pieces of the first part.
func hitJobs(counts []uint32, iters uint64) (jobs []job) {
	for _, regions := range counts {
		for _, j := range []job{{threads: 1}, {threads: 2}, {threads: 2, apart: true}} {
			j.regions, j.iters, j.churn = regions, iters, churnNone
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// contentionJobs are the pieces of the second part: one hot Region, and a
// churner beside one thread that hits.
func contentionJobs(iters uint64) (jobs []job) {
	for _, j := range []job{
		{regions: 1, threads: 1, churn: churnNone},
		{regions: 1, threads: 2, churn: churnNone},
		{regions: 1, threads: 4, churn: churnNone},
		{regions: 16, threads: 1, churn: churnNone},
		{regions: 16, threads: 1, churn: churnMix},
		{regions: 16, threads: 1, churn: churnSame},
		{regions: 16, threads: 1, churn: churnOther},
	} {
		j.contend, j.iters, j.limit = true, iters, 150*time.Millisecond
		jobs = append(jobs, j)
	}
	return jobs
}
