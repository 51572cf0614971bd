package imb

import (
	"fmt"
	"io"
	"strings"
)

// column is the width of a column.
const column = 13

// rule is the line of dashes over and under a title, for so many columns.
func rule(columns int) string { return "#" + strings.Repeat("-", column*columns-1) }

// Head is what stands at the top of the output.
type Head struct {
	Title    string // "holdfast bench, ..."
	Date     string // as ctime(3)
	Machine  string
	System   string
	Release  string
	Version  string
	Notes    [][2]string // name and value of further lines: device, interception
	Command  string      // the calling sequence
	MinBytes int
	MaxBytes int
	Names    []string // of the benchmarks
}

// WriteHead writes the top of the output.
func WriteHead(w io.Writer, h Head) {
	fmt.Fprintf(w, "%s\n#    %s\n%s\n", rule(5), h.Title, rule(5))
	for _, l := range append([][2]string{
		{"Date", h.Date}, {"Machine", h.Machine}, {"System", h.System}, {"Release", h.Release}, {"Version", h.Version},
	}, h.Notes...) {
		fmt.Fprintf(w, "# %-22s: %s\n", l[0], l[1])
	}
	fmt.Fprintf(w, "\n\n# Calling sequence was: \n\n# %s\n\n", h.Command)
	fmt.Fprintf(w, "# Minimum message length in bytes:   %d\n# Maximum message length in bytes:   %d\n#\n", h.MinBytes, h.MaxBytes)
	fmt.Fprintf(w, "# MPI_Datatype                   :   MPI_BYTE \n# MPI_Datatype for reductions    :   MPI_FLOAT \n# MPI_Op                         :   MPI_SUM  \n# \n# \n\n")
	fmt.Fprintf(w, "# List of Benchmarks to run:\n\n")
	for _, n := range h.Names {
		fmt.Fprintf(w, "# %s\n", n)
	}
}

// WriteTitle writes what stands over the rows of a benchmark that two
// processes do and that has no minimum and average: PingPong, PingPing.
func WriteTitle(w io.Writer, name string) {
	fmt.Fprintf(w, "\n%s\n# Benchmarking %s \n# #processes = 2 \n%s\n", rule(4), name, rule(4))
	fmt.Fprintf(w, "%13s%13s%13s%13s\n", "#bytes", "#repetitions", "t[usec]", "Mbytes/sec")
}

// WriteRow writes a row under WriteTitle. usec is the time of one message; the
// rate follows from it, in 10^6 bytes.
func WriteRow(w io.Writer, size, repetitions int, usec float64) {
	rate := 0.0
	if usec > 0 {
		rate = float64(size) / usec
	}
	fmt.Fprintf(w, "%13d%13d%13.2f%13.2f\n", size, repetitions, usec, rate)
}

// WriteRowOutOfMem writes a row for a size that could not be run for want of
// memory, in the words of IMB and with our own reason.
func WriteRowOutOfMem(w io.Writer, size int, why string) {
	fmt.Fprintf(w, "%13d out-of-mem.; %s\n", size, why)
}

// WriteFoot writes the end of the output.
func WriteFoot(w io.Writer) { fmt.Fprintf(w, "\n\n# All processes entering MPI_Finalize\n\n") }
