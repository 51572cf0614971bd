package cli

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"time"

	"example.com/holdfast/bench/internal/compare"
	"example.com/holdfast/bench/internal/imb"
	"example.com/holdfast/bench/internal/memory"
	"example.com/holdfast/bench/internal/pingpong"
	"example.com/holdfast/bench/internal/rig"
	"example.com/holdfast/bench/internal/team"
	"example.com/holdfast/hca"
)

// stuck is how long a sample may take before it is given up: far more than any
// takes that makes progress, since -time bounds it.
const stuck = time.Minute

// runBenchmarks is bench without a word or with the names of benchmarks. What
// the device cannot do is left out, unless it was asked for by name: then
// nothing runs.
func runBenchmarks(args []string, o *options, t team.Team, out *output, prog progress) error {
	for _, backend := range o.backends {
		if err := t.Lacks(backend); err != nil && o.named {
			return fmt.Errorf("%s: %w", backend, err)
		}
	}
	sizes := o.msglog.Sizes()
	machine, system, release, version := host()
	imb.WriteHead(out, imb.Head{
		Title:   "holdfast bench, layout of Intel(R) MPI Benchmarks 2021.11",
		Date:    time.Now().Format(time.ANSIC),
		Machine: machine, System: system, Release: release, Version: version,
		Notes:    t.Notes(),
		Command:  strings.Join(append([]string{"bench"}, args...), " "),
		MinBytes: sizes[0], MaxBytes: sizes[len(sizes)-1],
		Names: o.names,
	})
	fmt.Fprintf(out, "\n# t is half a repetition: registering, moving and, where buffers are new each time,\n"+
		"# mapping and unmapping them. Filling and checking every byte is not in it.\n")

	busy := busyLine(load(), runtime.NumCPU())
	r := run{o: o, team: t, out: out, prog: prog, available: available()}
	for _, backend := range o.backends {
		if err := t.Lacks(backend); err != nil {
			fmt.Fprintf(out, "\n# Backend               : %s: not run, %v\n", backend, err)
			r.lacking = append(r.lacking, backend)
			continue
		}
		for _, kind := range o.buffers {
			if err := r.series(backend, kind); err != nil {
				return fmt.Errorf("%s with %v buffers: %w", backend, kind, err)
			}
		}
	}
	prog.clear()
	r.table.Write(out)
	fmt.Fprintln(out)
	for _, text := range []string{r.table.Conclude(), r.checked(), r.skipped(), busy} {
		for _, line := range wrap(text, 98) {
			fmt.Fprintf(out, "# %s\n", line)
		}
	}
	imb.WriteFoot(out)
	if r.wrong > 0 {
		return fmt.Errorf("%d bytes arrived wrong", r.wrong)
	}
	return nil
}

// run is one run of a benchmark with all its series.
type run struct {
	o     *options
	team  team.Team
	out   *output
	prog  progress
	table compare.Table
	wrong int // bytes
	unrun int // samples for which there was no memory

	lacking []string // backends that the device does not have

	available uint64 // bytes of memory that the machine can give; 0: not known
}

// checked says what came of checking the bytes.
func (r *run) checked() string {
	text := "Every byte of every message was checked: none was wrong."
	if r.wrong > 0 {
		text = fmt.Sprintf("Every byte of every message was checked: %d were wrong.", r.wrong)
	}
	return text
}

// busyLine warns of figures that were measured beside other work: load is the
// number of threads that wanted to run in the minute before.
func busyLine(load float64, cpus int) string {
	if load <= float64(cpus)/2 {
		return ""
	}
	return fmt.Sprintf("The machine was busy before this run (load %.1f on %d processors): the figures say little. "+
		"Run it again on a quiet machine.", load, cpus)
}

// skipped says what did not run.
func (r *run) skipped() string {
	var said []string
	if r.unrun > 0 {
		said = append(said, fmt.Sprintf("%d samples did not run for want of memory (out-of-mem).", r.unrun))
	}
	if len(r.lacking) > 0 {
		said = append(said, fmt.Sprintf("Not run, because the device cannot: %s.", strings.Join(r.lacking, ", ")))
	}
	return strings.Join(said, " ")
}

// wrap breaks text into lines of at most width bytes where words allow it.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// series is one block of rows: a backend with one kind of buffers. Where the
// memory for a size cannot be pinned, its row says so, and so do those of the
// larger ones.
func (r *run) series(backend string, kind memory.Kind) (err error) {
	pair, err := r.team.Pair(backend)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pair.Close()) }()
	fmt.Fprintf(r.out, "\n# Backend               : %s (%s)\n# Buffers               : %v\n", backend, pair.Name(), kind)
	imb.WriteTitle(r.out, "PingPong")
	prev := 0
	noMemory := ""
	for _, size := range r.o.msglog.Sizes() {
		if noMemory == "" {
			r.prog.show("%s, %v buffers, %d bytes", backend, kind, size)
			s, err := r.sample(pair, kind, size, prev)
			switch {
			case errors.Is(err, hca.ErrNoMemory), errors.Is(err, errOutOfMemory), errors.Is(err, syscall.ENOMEM):
				noMemory = err.Error()
			case err != nil:
				return err
			default:
				prev = s.N
				imb.WriteRow(r.out, size, s.N, s.Avg)
				if s.Wrong > 0 {
					r.wrong += s.Wrong
					fmt.Fprintf(r.out, "# %d bytes arrived wrong\n", s.Wrong)
				}
				r.table.Add(backend, kind.String(), size, s.Median)
				continue
			}
		}
		imb.WriteRowOutOfMem(r.out, size, noMemory)
		noMemory = "as above"
		r.unrun++
	}
	return nil
}

// enough refuses buffers that would take more than half of the memory that is
// available: the machine has other things to do.
func enough(kind memory.Kind, size int, available uint64) error {
	need := memory.Need(kind, size, rig.PoolPairs)
	if available == 0 || need <= available/2 {
		return nil
	}
	return fmt.Errorf("needed %v, more than half of the %v available: %w", hca.Bytes(need), hca.Bytes(available), errOutOfMemory)
}

// errOutOfMemory is not hca.ErrNoMemory, which is about pinning.
var errOutOfMemory = errors.New("out of memory")

// sample measures one size: a few repetitions to see how long one takes, then
// as many as the policy says.
func (r *run) sample(pair team.Pair, kind memory.Kind, size, prev int) (s pingpong.Sample, err error) {
	if err := enough(kind, size, r.available); err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), stuck,
		fmt.Errorf("no progress with messages of %d bytes for %v", size, stuck))
	defer cancel()
	if err := pair.Prepare(ctx, kind, size); err != nil {
		return s, err
	}
	// A few repetitions tell how long one takes, the untimed steps included,
	// and warm up.
	test := min(10, r.o.iter.Select(size))
	start := time.Now()
	first, err := pair.Play(ctx, 0, test)
	if err != nil {
		return s, err
	}
	n := r.o.iter.Dynamic(size, prev, r.o.secs, time.Since(start).Seconds()/float64(test))
	s, err = pair.Play(ctx, max(0, imb.WarmUp(n)-test), n)
	s.Wrong += first.Wrong
	return s, err
}
