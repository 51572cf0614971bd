package compare

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Table collects times. Backends and buffers are reported in the order in
// which they were added first. The zero value is an empty table.
type Table struct {
	backends []string
	buffers  []string
	sizes    []int
	usec     map[cell]float64
}

type cell struct {
	backend, buffers string
	size             int
}

// Add notes the time of a message of size bytes, in microseconds. A second
// Add for the same three replaces the first.
func (t *Table) Add(backend, buffers string, size int, usec float64) {
	if t.usec == nil {
		t.usec = make(map[cell]float64)
	}
	if !slices.Contains(t.backends, backend) {
		t.backends = append(t.backends, backend)
	}
	if !slices.Contains(t.buffers, buffers) {
		t.buffers = append(t.buffers, buffers)
	}
	if !slices.Contains(t.sizes, size) {
		t.sizes = append(t.sizes, size)
		slices.Sort(t.sizes)
	}
	t.usec[cell{backend, buffers, size}] = usec
}

// shown are the sizes that people look at first: a small message, a page, what
// rendezvous protocols start at, and large ones. Where a run had none of them
// the table shows the largest that it had.
var shown = []int{64, 4 << 10, 64 << 10, 1 << 20, 4 << 20}

// Sizes are the sizes that Write shows: messages of at least one byte.
func (t *Table) Sizes() []int {
	var sizes []int
	for _, s := range t.sizes {
		if slices.Contains(shown, s) {
			sizes = append(sizes, s)
		}
	}
	if len(sizes) == 0 {
		if n := len(t.sizes); n > 0 && t.sizes[n-1] > 0 {
			sizes = t.sizes[n-1:]
		}
	}
	return sizes
}

// base is the backend that the others are compared with: the first.
func (t *Table) base() string { return t.backends[0] }

// Write writes the table: a row for each kind of buffers and size, with the
// time under each backend and how many times that of the first it is. It
// writes nothing where there is nothing to show.
func (t *Table) Write(w io.Writer) {
	sizes := t.Sizes()
	if len(sizes) == 0 {
		return
	}
	others := t.backends[1:]
	rule := "#" + strings.Repeat("-", 15+13+13*len(t.backends)+13*len(others)-1)
	fmt.Fprintf(w, "\n%s\n# Backends compared: median t[usec] of a message, and times that of %s\n%s\n", rule, t.base(), rule)
	fmt.Fprintf(w, "%15s%13s", "buffers", "#bytes")
	for _, b := range t.backends {
		fmt.Fprintf(w, "%13s", b)
	}
	for _, b := range others {
		fmt.Fprintf(w, "%13s", b+"/"+t.base())
	}
	fmt.Fprintln(w)
	for _, kind := range t.buffers {
		for _, size := range sizes {
			fmt.Fprintf(w, "%15s%13d", kind, size)
			for _, b := range t.backends {
				if us, ok := t.usec[cell{b, kind, size}]; ok {
					fmt.Fprintf(w, "%13.2f", us)
				} else {
					fmt.Fprintf(w, "%13s", "-")
				}
			}
			for _, b := range others {
				if r, ok := t.ratio(b, kind, size); ok {
					fmt.Fprintf(w, "%13.2f", r)
				} else {
					fmt.Fprintf(w, "%13s", "-")
				}
			}
			fmt.Fprintln(w)
		}
	}
}

// ratio is the time under backend b to that under the first.
func (t *Table) ratio(b, kind string, size int) (float64, bool) {
	mine, ok := t.usec[cell{b, kind, size}]
	base, okBase := t.usec[cell{t.base(), kind, size}]
	return mine / base, ok && okBase && base > 0
}

// mean is the geometric mean of ratio over the sizes shown.
func (t *Table) mean(b, kind string) (float64, bool) { return t.meanOf(b, []string{kind}) }

// overall is the same over all kinds of buffers.
func (t *Table) overall(b string) (float64, bool) { return t.meanOf(b, t.buffers) }

func (t *Table) meanOf(b string, kinds []string) (float64, bool) {
	sum, n := 0.0, 0
	for _, kind := range kinds {
		for _, s := range t.Sizes() {
			if r, ok := t.ratio(b, kind, s); ok && r > 0 {
				sum += math.Log(r)
				n++
			}
		}
	}
	return math.Exp(sum / float64(n)), n > 0
}
