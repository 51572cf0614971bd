package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// report is what is printed in the end.
type report struct {
	options
	machine machine
	all     []*contender
	parts   []part
}

// part is one part of the report: jobs that have a table in common.
type part struct {
	name  string
	bench string // the name in the format of Go's benchmarks
	about string // what the numbers are
	jobs  []job
}

// median of what f says of each round; of an even number the mean of the middle
// two. 0 of none.
func median(rounds []measurement, f func(measurement) float64) float64 {
	if len(rounds) == 0 {
		return 0
	}
	v := make([]float64, len(rounds))
	for i, m := range rounds {
		v[i] = f(m)
	}
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

func nsOf(m measurement) float64      { return m.ns }
func ranOf(m measurement) float64     { return m.ran }
func clockOf(m measurement) float64   { return m.clock }
func churnedOf(m measurement) float64 { return float64(m.churned) }

func percentile(p float64) func(measurement) float64 {
	return func(m measurement) float64 { return float64(m.hist.ValueAtPercentile(p)) }
}

func total(h *hdrhistogram.Histogram) int64 { return h.TotalCount() }

// measured are the contenders that have figures for any of jobs.
func (r *report) measured(jobs []job) (some []*contender) {
	for _, c := range r.all {
		if slices.ContainsFunc(jobs, func(j job) bool { return len(c.results[j.key()]) > 0 }) {
			some = append(some, c)
		}
	}
	return some
}

// yardstick is the peer among some to which ratios are given: the last, which is
// the newest; nil if none of them is a peer.
func yardstick(some []*contender) (peer *contender) {
	for _, c := range some {
		if !c.ours {
			peer = c
		}
	}
	return peer
}

// tables prints for people.
func (r *report) tables(w io.Writer, print func(*grid, io.Writer)) {
	fmt.Fprintf(w, "%v; load average %s before and %s after\n", r.machine, r.machine.loadBefore, r.machine.loadAfter)
	for _, p := range r.parts {
		some := r.measured(p.jobs)
		if len(some) == 0 {
			continue
		}
		g := &grid{}
		if p.jobs[0].mode == modeContend {
			r.spread(g, p, some)
		} else {
			r.times(g, p, some)
		}
		fmt.Fprintf(w, "\n%s\n\n", r.caption(p, some))
		print(g, w)
		r.busy(w, p, some)
	}
	fmt.Fprintln(w)
	print(r.notes(), w)
}

// caption says what a table shows.
func (r *report) caption(p part, some []*contender) string {
	s := fmt.Sprintf("%s: %s. Medians of %d rounds of %d", p.name, p.about, r.rounds, p.jobs[0].iters)
	if peer := yardstick(some); peer != nil && p.jobs[0].mode != modeContend {
		s += ", and the ratio to " + peer.name
	}
	return s + "."
}

// times fills a table of one row a job and one column a contender, with its ratio
// to the yardstick.
func (r *report) times(g *grid, p part, some []*contender) {
	peer := yardstick(some)
	head := []string{""}
	for _, c := range some {
		head = append(head, c.name, "")
	}
	g.row(head...)
	for _, j := range p.jobs {
		row := []string{j.in()}
		for _, c := range some {
			ns, ratio := "-", ""
			if v := median(c.results[j.key()], nsOf); v > 0 {
				ns = fmt.Sprintf("%.1f", r.shown(v))
				if peer != nil && c != peer && len(peer.results[j.key()]) > 0 {
					ratio = fmt.Sprintf("%.2fx", v/median(peer.results[j.key()], nsOf))
				}
			}
			row = append(row, ns, ratio)
		}
		if slices.ContainsFunc(row[1:], func(s string) bool { return s != "-" && s != "" }) {
			g.row(row...)
		}
	}
}

// shown is a time as the tables have it.
func (r *report) shown(ns float64) float64 {
	if r.instruction > 0 {
		return ns / r.instruction
	}
	return ns
}

// spread fills a table of one row a job and contender.
func (r *report) spread(g *grid, p part, some []*contender) {
	g.row("", "who", "p50", "p99", "p99.9", "clock", "samples", "churned", "ran")
	whole := func(v float64) string { return fmt.Sprintf("%.0f", v) }
	for _, j := range p.jobs {
		for _, c := range some {
			rounds := c.results[j.key()]
			if len(rounds) == 0 {
				continue
			}
			g.row(j.in(), c.name,
				whole(median(rounds, percentile(50))), whole(median(rounds, percentile(99))), whole(median(rounds, percentile(99.9))),
				whole(median(rounds, clockOf)), whole(median(rounds, func(m measurement) float64 { return float64(total(m.hist)) })),
				whole(median(rounds, churnedOf)), whole(median(rounds, ranOf))+"%")
		}
	}
}

// busy says so if others had the processors while it was measured. The figures
// of one thread are processor time and bear that; threads that seldom run at
// the same moment seldom wait for each other.
func (r *report) busy(w io.Writer, p part, some []*contender) {
	var shares []measurement
	for _, c := range some {
		for _, j := range p.jobs {
			if j.threads <= runtime.NumCPU() {
				for _, m := range c.results[j.key()] {
					if m.ran > 0 {
						shares = append(shares, m)
					}
				}
			}
		}
	}
	if ran := median(shares, ranOf); ran > 0 && ran < 80 {
		fmt.Fprintf(w, "\nThe machine was busy: threads had a processor for %.0f%% of the time. They then run at the same moment\n"+
			"less often than they would, and wait for each other less often: such figures flatter who has them wait.\n", ran)
	}
}

// notes says who the contenders are, and why those are missing that are.
func (r *report) notes() *grid {
	g := &grid{left: 2}
	g.row("who", "what")
	for _, c := range r.all {
		switch {
		case c.failed != nil:
			g.row(c.name, "FAILED: "+strings.ReplaceAll(c.failed.Error(), "\n", " "))
		case c.absent != "" && len(c.results) > 0:
			g.row(c.name, c.about+"; some of it absent: "+c.absent)
		case c.absent != "":
			g.row(c.name, "absent: "+c.absent)
		default:
			g.row(c.name, c.about)
		}
	}
	return g
}

// benchmarks prints in the format of Go's benchmarks, one line a round.
func (r *report) benchmarks(w io.Writer) {
	fmt.Fprintf(w, "goos: %s\ngoarch: %s\npkg: example.com/holdfast/bench/peers\ncpu: %s\nload: %s to %s\n",
		runtime.GOOS, runtime.GOARCH, r.machine.cpu, r.machine.loadBefore, r.machine.loadAfter)
	for _, p := range r.parts {
		for _, j := range p.jobs {
			for _, c := range r.measured([]job{j}) {
				for _, m := range c.results[j.key()] {
					fmt.Fprintf(w, "Benchmark%s/%s/who=%s", p.bench, j.name(), c.name)
					switch j.mode {
					case modeContend:
						fmt.Fprintf(w, "\t%d\t%d p50-ns\t%d p99-ns\t%d p99.9-ns\t%.1f ran-%%\n", total(m.hist),
							m.hist.ValueAtPercentile(50), m.hist.ValueAtPercentile(99), m.hist.ValueAtPercentile(99.9), m.ran)
					case modeHit:
						fmt.Fprintf(w, "\t%d\t%.3f ns/op\t%.3f wall-ns/op\n", m.iters, m.ns, m.wall)
					default:
						fmt.Fprintf(w, "\t%d\t%.3f ns/op\n", m.iters, m.ns)
					}
				}
			}
		}
	}
}
