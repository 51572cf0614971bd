package cli

import (
	"fmt"
	"io"
	"os"
)

// progress shows in one line of a terminal what is being done. Where standard
// error is not a terminal it shows nothing.
type progress struct{ w io.Writer }

func newProgress(w io.Writer) progress {
	if f, ok := w.(*os.File); ok && isTerminal(f) {
		return progress{w}
	}
	return progress{io.Discard}
}

// show replaces the line.
func (p progress) show(format string, args ...any) {
	fmt.Fprintf(p.w, "\r\x1b[K"+format, args...)
}

// clear takes the line away.
func (p progress) clear() { fmt.Fprint(p.w, "\r\x1b[K") }
