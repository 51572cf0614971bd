package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"example.com/holdfast/bench/internal/rig"
	"example.com/holdfast/bench/internal/team"
)

// The exit statuses.
const (
	exitOK    = 0
	exitFail  = 1 // something failed, or bytes were wrong
	exitUsage = 2
)

// Main runs bench with args, the words after the command's name, and says what
// the process has to exit with.
func Main(args []string, stdout, stderr io.Writer) int {
	o, err := parse(args)
	switch {
	case errors.Is(err, errHelp):
		fmt.Fprint(stdout, usage)
		return exitOK
	case err != nil:
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return exitUsage
	}
	if ticket := os.Getenv(team.Variable); ticket != "" {
		if err := team.Rank1(ticket, o.open(1)); err != nil {
			fmt.Fprintf(stderr, "bench, rank 1: %v\n", err)
			return exitFail
		}
		return exitOK
	}
	out := &output{w: stdout}
	prog := newProgress(stderr)
	if o.stale {
		err = showStale(o, out, prog)
	} else {
		err = compareBackends(args, o, out, prog, stderr)
	}
	if err = errors.Join(err, out.err); err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return exitFail
	}
	return exitOK
}

// open opens what the given ranks of this process, or both, run on.
func (o *options) open(ranks ...int) func() (*rig.Rig, error) {
	return func() (*rig.Rig, error) {
		return rig.Open(rig.Config{Device: o.device, TrustODP: o.trustODP, Ranks: ranks})
	}
}

// showStale is bench stale.
func showStale(o *options, out *output, prog progress) error {
	g, err := o.open()()
	if err != nil {
		return err
	}
	err = runStale(o, g, out, prog)
	prog.clear()
	return errors.Join(err, g.Close())
}

// compareBackends is bench without a word or with the names of benchmarks.
func compareBackends(args []string, o *options, out *output, prog progress, stderr io.Writer) error {
	t, err := o.team(args, stderr)
	if err != nil {
		return err
	}
	err = runBenchmarks(args, o, t, out, prog)
	prog.clear()
	return errors.Join(err, t.Close())
}

// team makes the two ranks. Where rank 1 is a process it is this program once
// more, with the same arguments.
func (o *options) team(args []string, stderr io.Writer) (team.Team, error) {
	if !o.apart {
		g, err := o.open()()
		return team.Threads{Rig: g}, err
	}
	self, err := executable()
	if err != nil {
		return nil, err
	}
	command := exec.Command(self, args...)
	command.Stderr = stderr
	t, err := team.Start(command, o.open(0))
	if err != nil {
		return nil, err
	}
	return t, nil
}

// output remembers the first error of writing, so that a full disk or a closed
// pipe is not taken for success.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(p []byte) (int, error) {
	if o.err != nil {
		return len(p), nil
	}
	if _, err := o.w.Write(p); err != nil {
		o.err = err
	}
	return len(p), nil
}
