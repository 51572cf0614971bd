package cli

import (
	"errors"
	"fmt"
	"io"

	"example.com/holdfast/bench/internal/rig"
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
	out := &output{w: stdout}
	prog := newProgress(stderr)
	g, err := rig.Open(rig.Config{Device: o.device, TrustODP: o.trustODP})
	if err == nil {
		if o.stale {
			err = runStale(o, g, out, prog)
		} else {
			err = runBenchmarks(args, o, g, out, prog)
		}
		prog.clear()
		err = errors.Join(err, g.Close())
	}
	if err = errors.Join(err, out.err); err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return exitFail
	}
	return exitOK
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
