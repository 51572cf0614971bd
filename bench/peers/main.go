package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// asOurs as the first argument makes this program be the process of one of our
// contenders; the kind of memory and the job follow. Each job of each contender
// is done in a process of its own, ours too.
const asOurs = "-as"

// options are the flags.
type options struct {
	rounds   int
	iters    uint64
	regions  []uint32
	threads  int // 0: any number
	format   string
	part     string
	suite    string
	also     []*contender
	programs string // a folder to build into; empty: measure
	// nanoseconds of an instruction, where the clock counts those; 0: it does not
	instruction float64
}

// run is the command; it answers with the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 1 && args[0] == asOurs {
		if err := runOurs(args[1], args[2:], stdout); err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		return 0
	}
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	do := compare
	if o.programs != "" {
		do = buildPrograms
	}
	if err := do(ctx, o, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "peers:", err)
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	f := flag.NewFlagSet("peers", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&o.rounds, "rounds", 5, "how often every contender does every job")
	f.Uint64Var(&o.iters, "iters", 2_000_000, "gets and puts of each thread in one round; those that register or ask the kernel each time do a tenth")
	regions := f.String("regions", "16,1024,65536", "how many ranges are cached, one part of the table each")
	f.IntVar(&o.threads, "threads", 0, "leave out what keeps more threads than this busy, a churner counted; 0: nothing")
	f.Float64Var(&o.instruction, "instruction", 0, "the clock counts instructions, of so many nanoseconds each: the tables of the first three parts are of instructions; 0: it counts time")
	f.StringVar(&o.format, "format", "table", "table; markdown: the same for a document; go: the format of Go's benchmarks, for benchstat")
	f.Func("also", "NAME=PROGRAM: measure this one too, in place of the peer of that name if there is one; it answers like those in the folder c; may be given again", func(s string) error {
		name, program, ok := strings.Cut(s, "=")
		if !ok || name == "" || program == "" {
			return errors.New("want NAME=PROGRAM")
		}
		o.also = append(o.also, peerAs(name, program))
		return nil
	})
	f.StringVar(&o.part, "part", "all", "hits, front, cold, contention or all")
	f.StringVar(&o.suite, "suite", "", "measure the peers of this suite of Debian too, for instance testing: fetched by apt-get into the user's cache folder, not installed")
	f.StringVar(&o.programs, "programs", "", "build the peers' programs into this folder, for another computer, and measure nothing")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	bad := func(format string, args ...any) error {
		err := fmt.Errorf(format, args...)
		fmt.Fprintln(stderr, "peers:", err)
		return err
	}
	for n := range strings.SplitSeq(*regions, ",") {
		v, err := strconv.ParseUint(n, 10, 32)
		if err != nil || v < 2 || v > maxRegions {
			return o, bad("-regions is %q; numbers from 2 to %d, with commas between", *regions, maxRegions)
		}
		o.regions = append(o.regions, uint32(v))
	}
	switch {
	case f.NArg() > 0:
		return o, bad("what is %q? there are only flags", f.Arg(0))
	case o.rounds < 1:
		return o, bad("-rounds is %d; at least 1", o.rounds)
	case o.threads < 0:
		return o, bad("-threads is %d; a number of threads, or 0", o.threads)
	case !(o.instruction >= 0):
		return o, bad("-instruction is %v; nanoseconds, or 0", o.instruction)
	case o.iters < 1:
		return o, bad("-iters is 0; at least 1")
	case o.format != "table" && o.format != "markdown" && o.format != "go":
		return o, bad("-format is %q; table, markdown or go", o.format)
	case o.part != "all" && len(o.parts()) == 0:
		return o, bad("-part is %q; hits, front, cold, contention or all", o.part)
	case strings.ContainsFunc(o.suite, func(r rune) bool { return r != '-' && (r < 'a' || r > 'z') }):
		return o, bad("-suite is %q; a name as in /etc/apt, small letters", o.suite)
	}
	return o, nil
}

// parts are those that were asked for.
func (o options) parts() (some []part) {
	ofThread, of := "nanoseconds of one thread's processor time", "nanoseconds of processor time"
	if o.instruction > 0 {
		ofThread, of = "instructions of one thread", "instructions"
	}
	hitTime := ofThread + " per get and put of a cached range"
	for _, p := range []part{
		{"hits", "Hit", hitTime, hitJobs(o.regions, o.iters)},
		{"front", "Front", hitTime + ", in a View, or of each in a batch", frontJobs(o.iters)},
		{"cold", "Cold", of + " per miss, of the thread; or per end and the hit after it, of the process", coldJobs(o.regions, o.iters)},
		{"contention", "Contention", "nanoseconds of single gets and puts, percentiles of HDR histograms; each sample contains two readings of the clock, which are at least \"clock\" apart", contentionJobs(o.iters)},
	} {
		if o.part == "all" || o.part == p.name {
			p.jobs = slices.DeleteFunc(p.jobs, func(j job) bool { return o.threads > 0 && j.busy() > o.threads })
			some = append(some, p)
		}
	}
	return some
}

// compare builds the peers, lets all contenders take turns, and prints.
func compare(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, sources, remove, err := workFolder()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	var all []*contender
	for _, p := range peers {
		if !slices.ContainsFunc(o.also, func(c *contender) bool { return c.name == p.name }) {
			all = append(all, p.build(ctx, dir, sources))
		}
	}
	if o.suite != "" {
		all = append(all, suitePeers(ctx, o.suite, dir, sources)...)
	}
	for _, c := range o.also {
		c.ask(ctx)
		all = append(all, c)
	}
	all = append(all, ourContenders(self)...)

	m := thisMachine()
	for round := range o.rounds {
		fmt.Fprintf(stderr, "round %d of %d\n", round+1, o.rounds)
		for _, p := range o.parts() {
			for _, j := range p.jobs {
				for i := range all {
					if ctx.Err() != nil {
						return ctx.Err()
					}
					all[(i+round)%len(all)].run(ctx, j) // another begins each round
				}
			}
		}
	}
	m.loadAfter = load()

	r := report{options: o, machine: m, all: all}
	r.parts = o.parts()
	switch o.format {
	case "go":
		r.benchmarks(stdout)
		r.notes().plain(stderr)
	case "markdown":
		r.tables(stdout, (*grid).markdown)
	default:
		r.tables(stdout, (*grid).plain)
	}
	for _, c := range all {
		if c.ours && c.failed != nil {
			err = errors.Join(err, c.failed)
		}
	}
	return err
}

// workFolder makes a temporary folder, with the sources of the C programs in one
// inside it.
func workFolder() (dir, sources string, remove func() error, err error) {
	if dir, err = os.MkdirTemp("", "peers"); err != nil {
		return "", "", nil, err
	}
	remove = func() error { return os.RemoveAll(dir) }
	if err := unpack(dir); err != nil {
		return "", "", nil, errors.Join(err, remove())
	}
	return dir, filepath.Join(dir, "c"), remove, nil
}

// unpack writes the C programs into dir.
func unpack(dir string) error { return os.CopyFS(dir, sources) }
