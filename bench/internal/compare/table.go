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

// side is how many backends can stand side by side with their ratios in one
// table. More get a table of times and one of ratios.
const side = 3

// Write writes the table: a row for each kind of buffers and size, with the
// time under each backend and how many times that of the first it is. It
// writes nothing where there is nothing to show.
func (t *Table) Write(w io.Writer) {
	if len(t.Sizes()) == 0 {
		return
	}
	others := t.backends[1:]
	if len(t.backends) <= side {
		title(w, "Backends compared: median t[usec] of a message, and times that of "+t.base(), len(t.backends)+len(others))
		heads := slices.Clone(t.backends)
		for _, b := range others {
			heads = append(heads, b+"/"+t.base())
		}
		t.head(w, heads)
		t.rows(w, t.backends, others)
		return
	}
	title(w, "Backends compared: median t[usec] of a message", len(t.backends))
	t.head(w, t.backends)
	t.rows(w, t.backends, nil)
	title(w, "Backends compared: times that of "+t.base(), len(others))
	t.head(w, others)
	t.rows(w, nil, others)
}

// title is the rule, the text and the rule again over columns of figures.
func title(w io.Writer, text string, columns int) {
	rule := "#" + strings.Repeat("-", 15+13+13*columns-1)
	fmt.Fprintf(w, "\n%s\n# %s\n%s\n", rule, text, rule)
}

// head is the line of heads: two lines where one of them has a + in it, which
// is where it is broken.
func (t *Table) head(w io.Writer, heads []string) {
	var second []string
	for _, h := range heads {
		if _, rest, ok := strings.Cut(h, "+"); ok {
			second = append(second, "+"+rest)
		} else {
			second = append(second, "")
		}
	}
	fmt.Fprintf(w, "%15s%13s", "buffers", "#bytes")
	for i, h := range heads {
		fmt.Fprintf(w, "%13s", strings.TrimSuffix(h, second[i]))
	}
	fmt.Fprintln(w)
	if strings.Join(second, "") != "" {
		line := fmt.Sprintf("%28s", "")
		for _, h := range second {
			line += fmt.Sprintf("%13s", h)
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}

// rows are the rows, with the times under some backends and the ratios of
// others.
func (t *Table) rows(w io.Writer, times, ratios []string) {
	figure := func(f float64, ok bool) {
		if ok {
			fmt.Fprintf(w, "%13.2f", f)
		} else {
			fmt.Fprintf(w, "%13s", "-")
		}
	}
	for _, kind := range t.buffers {
		for _, size := range t.Sizes() {
			fmt.Fprintf(w, "%15s%13d", kind, size)
			for _, b := range times {
				us, ok := t.usec[cell{b, kind, size}]
				figure(us, ok)
			}
			for _, b := range ratios {
				r, ok := t.ratio(b, kind, size)
				figure(r, ok)
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
