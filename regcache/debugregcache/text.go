package debugregcache

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// writeText writes the report for a terminal. The error is that of w.
func writeText(w io.Writer, r report) error {
	t := &text{tw: tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)}
	t.line("registration caches of %s at %s", r.Process, r.Time.Format(time.RFC3339))
	if len(r.Caches) == 0 {
		t.line("none")
	}
	for i := range r.Caches {
		t.cache(&r.Caches[i])
	}
	if err := t.tw.Flush(); t.err == nil {
		t.err = err
	}
	return t.err
}

// text writes lines and keeps the first error.
type text struct {
	tw  *tabwriter.Writer
	err error
}

func (t *text) line(format string, args ...any) {
	if _, err := fmt.Fprintf(t.tw, format+"\n", args...); t.err == nil {
		t.err = err
	}
}

// title begins a table with columns of its own.
func (t *text) title(format string, args ...any) {
	if err := t.tw.Flush(); t.err == nil { // so that columns are those of one table
		t.err = err
	}
	t.line("\n"+format, args...)
}

func (t *text) cache(c *cacheReport) {
	t.title("== %s", oneLine(c.Name))
	t.line("backend\t%s", oneLine(c.Backend))
	t.line("monitor\t%s", oneLine(c.Monitor))
	t.line("config\t%s", oneLine(c.Config))
	t.line("hit ratio\t%s", ratio(c.HitRatio))
	t.line("registrations\t%s", c.Regions.words(func(n uint64) string { return grouped(n) }))
	t.line("pinned\t%s", c.Pinned.words(byteString))

	t.title("COUNTED\tNUMBER\tMEANING")
	for _, f := range c.figures {
		if f.Name == "max_pinned" && c.Pinned.Max == nil {
			t.line("%s\tno limit\t%s", f.Name, f.Help)
			continue
		}
		t.line("%s\t%d\t%s", f.Name, f.N, f.Help)
	}
	t.groups("STATE", c.States)
	t.groups("KIND OF MEMORY", c.Kinds)
	for _, h := range []struct {
		title string
		bins  []bin
	}{{"SIZE", c.Sizes}, {"AGE", c.Ages}} {
		t.title("%s\tREGIONS", h.title)
		for _, b := range h.bins {
			t.line("%s\t%d\t%s", b.Label, b.Regions, strings.Repeat("#", bar(b.Regions, h.bins, 40)))
		}
	}
	t.title("NOT KEPT, BECAUSE\tTIMES\tWHAT TO DO")
	for _, r := range c.UsedOnce {
		t.line("%s\t%d\t%s", r.Text, r.Count, r.Advice)
	}
	if len(c.UsedOnce) == 0 {
		t.line("everything was kept\t0")
	}
	if m := c.Sees; m != nil {
		t.title("THE MONITOR SAW\tTIMES")
		t.line("unmaps\t%d", m.Unmaps)
		t.line("remaps\t%d", m.Remaps)
		t.line("discards\t%d", m.Discards)
		t.line("announced by the program\t%d", m.Announced)
		t.line("lost\t%d", m.Lost)
		t.line("asked to watch\t%d", m.Watches)
		for _, r := range m.Unknown {
			t.line("not watched: %s\t%d", r.Text, r.Count)
		}
		t.line("ranges known to be watched\t%d", m.Known)
		t.line("ranges in doubt after a discard\t%d", m.Doubted)
	}
	t.regions("BUSIEST", c.Busiest)
	t.regions("OLDEST", c.Oldest)
	t.regions("NEXT TO GO", c.Next)
	t.regions("ALL REGIONS", c.All)
}

func (t *text) groups(title string, all []group) {
	t.title("%s\tREGIONS\tCOVER\tPIN", title)
	for _, g := range all {
		t.line("%s\t%d\t%s\t%s", g.Name, g.Regions, byteString(g.Bytes), byteString(g.Pinned))
	}
}

func (t *text) regions(title string, list []region) {
	if len(list) == 0 {
		return
	}
	t.title("%s\tLENGTH\tHITS\tUSERS\tAGE\tUNUSED\tSTATE\tKIND\tACCESS\tLKEY\tWHY", title)
	for _, r := range list {
		t.line("%s-%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%#x\t%s", r.Start, r.End, byteString(r.Bytes), r.Hits, r.References,
			seconds(r.Age), seconds(r.Unused), r.State, r.Kind, r.Access, r.LKey, r.Why)
	}
}

// bar is how long the bar of n is if that of the largest is width; something as
// soon as there is something.
func bar(n int, all []bin, width int) int {
	most := 0
	for _, b := range all {
		most = max(most, b.Regions)
	}
	if n == 0 {
		return 0
	}
	return max(n*width/most, 1)
}

// words says how much of the limit is used.
func (l limit) words(f func(uint64) string) string {
	if l.Max == nil {
		return f(l.Used) + ", no limit"
	}
	return fmt.Sprintf("%s of %s (%.1f %%)", f(l.Used), f(*l.Max), percent(float64(l.Used), float64(*l.Max)))
}

// oneLine keeps a name from breaking the layout.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}
