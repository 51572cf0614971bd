package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// newContender is a contender that does its jobs by command; nil: it cannot.
func newContender(name, about string, command ...string) *contender {
	return &contender{name: name, about: about, command: command, lacks: map[string]bool{}, results: map[string][]measurement{}}
}

// contender is one cache, on one kind of memory where that makes a difference.
type contender struct {
	name    string   // in tables and names of benchmarks
	about   string   // what it is, with its version
	command []string // the process that does a job, without the job
	ours    bool
	slow    bool                     // a get takes far longer: it gets a tenth of the iterations
	does    func(job) bool           // nil: everything
	absent  string                   // why it cannot run here, or not do all; empty: it can
	results map[string][]measurement // by job.key, one a round
	lacks   map[string]bool          // the keys of jobs that it answered "absent" to
	failed  error                    // the first failure
}

// measurement is what one process answered for one job.
type measurement struct {
	iters   uint64
	ns      float64                 // processor time
	wall    float64                 // time on the clock
	hist    *hdrhistogram.Histogram // nil without contend
	clock   float64
	churned uint64
	ran     float64 // share of the time that the threads had a processor, percent
	last    uint64
}

// The range of a histogram, nanoseconds, and its precision. What takes longer
// than a minute does not come back: processLimit ends it.
const (
	histMost     = 60_000_000_000
	histDigits   = 3
	processLimit = 60 * time.Second
)

// answers runs the contender's process and gives its output by lines.
func (c *contender) answers(ctx context.Context, args ...string) ([][]string, error) {
	ctx, cancel := context.WithTimeout(ctx, processLimit)
	defer cancel()
	all := append(append([]string(nil), c.command...), args...)
	cmd := exec.CommandContext(ctx, all[0], all[1:]...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(errs.String()), "\n")
		if ctx.Err() != nil {
			first = "ended after " + processLimit.String()
		}
		return nil, fmt.Errorf("%s: %v: %s", c.name, err, first)
	}
	var lines [][]string
	for s := bufio.NewScanner(&out); s.Scan(); {
		if f := strings.Fields(s.Text()); len(f) > 1 {
			lines = append(lines, f)
		}
	}
	return lines, nil
}

// ask finds out what the contender is, unless it is absent or has failed already.
// One that cannot say so fails.
func (c *contender) ask(ctx context.Context) {
	if c.command == nil || c.failed != nil {
		return
	}
	lines, err := c.answers(ctx, "about")
	switch {
	case err != nil:
		c.failed = err
	case len(lines) != 1 || lines[0][0] != "about":
		c.failed = fmt.Errorf("%s: does not say what it is", c.name)
	default:
		c.about = strings.Join(lines[0][1:], " ")
	}
}

// run does one job once and keeps what came out.
func (c *contender) run(ctx context.Context, j job) {
	if c.command == nil || c.failed != nil || c.lacks[j.key()] || c.does != nil && !c.does(j) {
		return
	}
	if c.slow {
		j.iters = max(1, j.iters/10)
	}
	lines, err := c.answers(ctx, j.args()...)
	if err != nil {
		c.failed = err
		return
	}
	m := measurement{iters: j.iters}
	if j.mode == modeContend {
		m.hist = hdrhistogram.New(1, histMost, histDigits)
	}
	for _, f := range lines {
		if f[0] == "absent" {
			c.absent = strings.Join(f[1:], " ")
			c.lacks[j.key()] = true
			if j.churn == churnNone && j.mode == modeHit { // then there is nothing that it could do
				c.command = nil
			}
			return
		}
		if err := m.take(f); err != nil {
			c.failed = fmt.Errorf("%s: answer %q: %v", c.name, f, err)
			return
		}
	}
	if contend := j.mode == modeContend; contend != (m.hist != nil && m.hist.TotalCount() > 0) || !contend && m.ns <= 0 {
		c.failed = fmt.Errorf("%s: no answer to %q", c.name, j.args())
		return
	}
	c.results[j.key()] = append(c.results[j.key()], m)
}

// take adds one line of an answer.
func (m *measurement) take(f []string) error {
	var a float64
	var n int64
	if _, err := fmt.Sscan(f[1], &a); err != nil {
		return err
	}
	switch f[0] {
	case "ns":
		m.ns = a
	case "wall":
		m.wall = a
	case "ran":
		m.ran = a
	case "last":
		m.last = uint64(a)
	case "clock":
		m.clock = a
	case "churned":
		m.churned = uint64(a)
	case "sample":
		if len(f) != 3 || m.hist == nil {
			return fmt.Errorf("not a sample")
		}
		if _, err := fmt.Sscan(f[2], &n); err != nil {
			return err
		}
		return m.hist.RecordValues(max(1, int64(a)), n)
	default:
		return fmt.Errorf("unknown word")
	}
	return nil
}
