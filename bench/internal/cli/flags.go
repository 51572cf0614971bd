package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"example.com/holdfast/bench/internal/imb"
	"example.com/holdfast/bench/internal/memory"
	"example.com/holdfast/bench/internal/rig"
)

// options are what the command line asks for.
type options struct {
	stale    bool
	names    []string // of benchmarks
	msglog   imb.MsgLog
	iter     imb.Iter
	iterSet  bool
	backends []string
	named    bool // the backends were asked for by name
	trustODP bool
	buffers  []memory.Kind
	device   string
	apart    bool    // a process for each rank
	secs     float64 // at most for a sample
}

// benchmarks are the names that can be asked for.
var benchmarks = []string{"PingPong"}

// defaultSecs keeps the whole default run, 288 samples, under a minute even
// where every sample needs all its time.
const defaultSecs = 0.1

// usage is what -h prints.
const usage = `bench measures what memory registrations cost a message library.

usage: bench [flags] [PingPong]     compare backends (no name: PingPong)
       bench stale [flags]          show what kept registrations do without interception

flags:
  -msglog min:max   message sizes: 0 and 2^min to 2^max bytes (0:22)
  -iter n,vol       repetitions of a sample, and MiB that it moves at most (1000,40);
                    for stale: rounds of each loop
  -backend list     of direct, pin, odp, odp-whole, odp-windows, odp-range, the last
                    four also with +prefetch behind; or all (direct,pin,odp)
  -buffers list     of same, fresh, fresh-same-va, pool (all)
  -device name      live: an adapter in software over this process's memory;
                    verbs:NAME: a real adapter, in a build with -tags verbs (live)
  -trust-odp        use on-demand paging of a real adapter that is right for whole
                    pages only, as that of Soft-RoCE: buffers here begin at the
                    beginning of a page (without: it is taken for none)
  -ranks where      thread: both ranks are threads of one process; process: each is a
                    process of its own, with a real adapter only (thread)
  -time seconds     that a sample may take: fewer repetitions if need be (0.1)
  -h                this text

backends: direct registers and deregisters for each transfer; pin keeps pinned
registrations in a cache; odp keeps on-demand ones in a cache, of the best kind that
the device has: one of the whole address space, windows of it, or one a range.
odp-whole, odp-windows and odp-range force one; +prefetch has the pages of every
buffer made ready before its transfer; all is every one of these. What the device
lacks is left out, and named, unless it was asked for by name.
buffers: same is one buffer; fresh is mapped and unmapped around every repetition;
fresh-same-va is that, always at one address; pool is more mappings than the cache
may keep, in turn.
`

// errHelp says that usage was asked for.
var errHelp = errors.New("help")

// parse reads the command line. Its errors are one line each.
func parse(args []string) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	msglog := fs.String("msglog", imb.DefaultMsgLog.String(), "")
	iter := fs.String("iter", imb.DefaultIter.String(), "")
	backend := fs.String("backend", strings.Join(rig.DefaultBackends(), ","), "")
	buffers := fs.String("buffers", "same,fresh,fresh-same-va,pool", "")
	fs.StringVar(&o.device, "device", "live", "")
	ranks := fs.String("ranks", "thread", "")
	fs.BoolVar(&o.trustODP, "trust-odp", false, "")
	fs.Float64Var(&o.secs, "time", defaultSecs, "")

	var names []string
	for rest := args; ; {
		if err := fs.Parse(rest); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, errHelp
			}
			return nil, err
		}
		if fs.NArg() == 0 {
			break
		}
		names = append(names, fs.Arg(0))
		rest = fs.Args()[1:]
	}

	set := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { set[f.Name] = true })
	o.iterSet = set["iter"]
	if err := o.setNames(names, set); err != nil {
		return nil, err
	}
	var err error
	if o.msglog, err = imb.ParseMsgLog(*msglog); err != nil {
		return nil, fmt.Errorf("-msglog: %w", err)
	}
	if o.iter, err = imb.ParseIter(*iter); err != nil {
		return nil, fmt.Errorf("-iter: %w", err)
	}
	if o.backends, o.named, err = rig.ParseBackends(*backend); err != nil {
		return nil, fmt.Errorf("-backend: %w", err)
	}
	o.named = o.named && set["backend"]
	if o.buffers, err = memory.ParseKinds(*buffers); err != nil {
		return nil, fmt.Errorf("-buffers: %w", err)
	}
	if err = rig.CheckDevice(o.device); err != nil {
		return nil, fmt.Errorf("-device: %w", err)
	}
	if o.apart, err = parseRanks(*ranks, o.device); err != nil {
		return nil, fmt.Errorf("-ranks: %w", err)
	}
	if o.trustODP && o.device == "live" {
		return nil, errors.New("-trust-odp means nothing for live")
	}
	if !(o.secs > 0 && o.secs <= time.Hour.Seconds()) {
		return nil, fmt.Errorf("-time: %v is not more than 0 and at most 3600 seconds", o.secs)
	}
	return o, nil
}

// parseRanks reads where the ranks are, and whether the device can do that.
func parseRanks(s, device string) (apart bool, err error) {
	switch {
	case s == "thread":
		return false, nil
	case s != "process":
		return false, fmt.Errorf("%q is neither thread nor process", s)
	case device == "live":
		return false, errors.New("live moves bytes between two ranks of one process only; two processes need a real adapter (-device verbs:NAME)")
	}
	return true, nil
}

// setNames reads what is not a flag.
func (o *options) setNames(names []string, set map[string]bool) error {
	if len(names) > 0 && names[0] == "stale" {
		if len(names) > 1 {
			return fmt.Errorf("stale takes no further name, not %q", names[1])
		}
		for _, f := range []string{"msglog", "backend", "buffers", "ranks", "time", "trust-odp"} {
			if set[f] {
				return fmt.Errorf("-%s means nothing for stale", f)
			}
		}
		o.stale = true
		return nil
	}
next:
	for _, n := range names {
		for _, known := range benchmarks {
			if strings.EqualFold(n, known) {
				o.names = append(o.names, known)
				continue next
			}
		}
		return fmt.Errorf("%q is no benchmark; there are: %s, stale", n, strings.Join(benchmarks, ", "))
	}
	if len(o.names) == 0 {
		o.names = benchmarks
	}
	return nil
}
