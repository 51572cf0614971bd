package cli

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"example.com/holdfast/bench/internal/compare"
	"example.com/holdfast/bench/internal/imb"
	"example.com/holdfast/bench/internal/memory"
	"example.com/holdfast/bench/internal/pingpong"
	"example.com/holdfast/bench/internal/rig"
)

// stuck is how long a sample may take before it is given up: far more than any
// takes that makes progress, since -time bounds it.
const stuck = time.Minute

// runBenchmarks is bench without a word or with the names of benchmarks.
func runBenchmarks(args []string, o *options, g *rig.Rig, out *output, prog progress) error {
	sizes := o.msglog.Sizes()
	machine, system, release, version := host()
	imb.WriteHead(out, imb.Head{
		Title:   "holdfast bench, layout of Intel(R) MPI Benchmarks 2021.11",
		Date:    time.Now().Format(time.ANSIC),
		Machine: machine, System: system, Release: release, Version: version,
		Notes:    g.Lines(),
		Command:  strings.Join(append([]string{"bench"}, args...), " "),
		MinBytes: sizes[0], MaxBytes: sizes[len(sizes)-1],
		Names: o.names,
	})
	fmt.Fprintf(out, "\n# t is half a repetition: registering, moving and, where buffers are new each time,\n"+
		"# mapping and unmapping them. Filling and checking every byte is not in it.\n")

	var table compare.Table
	game := pingpong.Game{}
	wrong := 0
	for _, backend := range o.backends {
		for _, kind := range o.buffers {
			w, err := series(o, g, &game, backend, kind, &table, out, prog)
			wrong += w
			if err != nil {
				return fmt.Errorf("%s with %v buffers: %w", backend, kind, err)
			}
		}
	}
	prog.clear()
	table.Write(out)
	if c := table.Conclude(); c != "" {
		fmt.Fprintf(out, "\n# %s\n", c)
	}
	if wrong == 0 {
		fmt.Fprintf(out, "# Every byte of every message was checked: none was wrong.\n")
	}
	imb.WriteFoot(out)
	if wrong > 0 {
		return fmt.Errorf("%d bytes arrived wrong", wrong)
	}
	return nil
}

// series is one block of rows: a backend with one kind of buffers.
func series(o *options, g *rig.Rig, game *pingpong.Game, backend string, kind memory.Kind,
	table *compare.Table, out *output, prog progress) (wrong int, err error) {
	pair, err := g.NewPair(backend)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, pair.Close()) }()
	fmt.Fprintf(out, "\n# Backend               : %s (%s)\n# Buffers               : %v\n", backend, pair.Name, kind)
	imb.WriteTitle(out, "PingPong")
	prev := 0
	for _, size := range o.msglog.Sizes() {
		prog.show("%s, %v buffers, %d bytes", backend, kind, size)
		s, err := sample(o, g, game, pair, kind, size, prev)
		if err != nil {
			return wrong, err
		}
		prev = s.N
		imb.WriteRow(out, size, s.N, s.Avg)
		if s.Wrong > 0 {
			wrong += s.Wrong
			fmt.Fprintf(out, "# %d bytes arrived wrong\n", s.Wrong)
		}
		table.Add(backend, kind.String(), size, s.Median)
	}
	return wrong, nil
}

// sample measures one size: a few repetitions to see how long one takes, then
// as many as the policy says.
func sample(o *options, g *rig.Rig, game *pingpong.Game, pair *rig.Pair, kind memory.Kind, size, prev int) (s pingpong.Sample, err error) {
	for i := range game.Ranks {
		src, err := memory.NewSource(g.Mapper, kind, size, rig.PoolPairs)
		if err != nil {
			return s, err
		}
		defer func() { err = errors.Join(err, src.Close()) }()
		game.Ranks[i] = pingpong.Rank{End: pair.Ends[i], Buffers: src}
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), stuck,
		fmt.Errorf("no progress with messages of %d bytes for %v", size, stuck))
	defer cancel()
	runtime.GC() // so that none falls into the sample
	// A few repetitions tell how long one takes, the untimed steps included,
	// and warm up.
	test := min(10, o.iter.Select(size))
	start := time.Now()
	first, err := game.Play(ctx, 0, test)
	if err != nil {
		return s, err
	}
	n := o.iter.Dynamic(size, prev, o.secs, time.Since(start).Seconds()/float64(test))
	s, err = game.Play(ctx, max(0, imb.WarmUp(n)-test), n)
	s.Wrong += first.Wrong
	return s, err
}
