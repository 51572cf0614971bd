package debugregcache

import (
	"embed"
	"fmt"
	"html/template"
	"time"
)

//go:embed page.html page.css page.js
var files embed.FS

// pages are the templates "page", the whole document, and "live", the part of it
// that is fetched again and again.
var pages = template.Must(template.New("").Funcs(template.FuncMap{
	"grouped":  groupedAny,
	"bytes":    bytesAny,
	"seconds":  seconds,
	"ratio":    ratio,
	"asset":    asset,
	"bars":     bars,
	"trouble":  trouble,
	"stack":    stack,
	"list":     func(title, how string, list []region) regionList { return regionList{title, how, list} },
	"limitPct": func(l limit) float64 { return l.percent() },
	"hex":      func(n uint32) string { return fmt.Sprintf("%#x", n) },
}).ParseFS(files, "page.html"))

// page is what the templates are given.
type page struct {
	report
	Took  time.Duration // making the report
	Top   int
	Nonce string
}

// TookMillis is how long the report took to make.
func (p page) TookMillis() float64 { return float64(p.Took.Microseconds()) / 1000 }

// Figures are the cache's numbers in order.
func (c cacheReport) Figures() []figure { return c.figures }

// asset is the text of a file of this package's own, to be put into the page as
// it is.
func asset(name string) (any, error) {
	b, err := files.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if name == "page.css" {
		return template.CSS(b), nil
	}
	return template.JS(b), nil
}

// regionList is a table of Regions.
type regionList struct {
	Title, How string
	List       []region
}

// groupedAny is grouped for the kinds of numbers that a report has.
func groupedAny(n any) (string, error) {
	switch n := n.(type) {
	case int:
		return grouped(n), nil
	case uint64:
		return grouped(n), nil
	case *uint64:
		return grouped(*n), nil
	}
	return "", fmt.Errorf("not a number of a report: %T", n)
}

func bytesAny(n any) (string, error) {
	switch n := n.(type) {
	case uint64:
		return byteString(n), nil
	case *uint64:
		return byteString(*n), nil
	}
	return "", fmt.Errorf("not a number of bytes: %T", n)
}

// barOf is a bin with the length of its bar in percent.
type barOf struct {
	bin
	Percent float64
}

func bars(all []bin) []barOf {
	out := make([]barOf, len(all))
	for i, b := range all {
		out[i] = barOf{b, float64(bar(b.Regions, all, 1000)) / 10}
	}
	return out
}

func (l limit) percent() float64 {
	if l.Max == nil {
		return 0
	}
	return percent(float64(l.Used), float64(*l.Max))
}

// slice is a part of a bar that shows a whole.
type slice struct {
	Name      string
	At, Width float64 // percent
	Class     string
}

// stack cuts a bar as long as the limit into what the states use of it; of the
// number of Regions if what is "regions", else of the bytes pinned.
func stack(c cacheReport, what string) []slice {
	l := c.Pinned
	if what == "regions" {
		l = c.Regions
	}
	whole := float64(l.Used)
	if l.Max != nil {
		whole = max(float64(*l.Max), whole)
	}
	var out []slice
	at := 0.0
	for i, g := range c.States {
		n := float64(g.Pinned)
		if what == "regions" {
			n = float64(g.Regions)
		}
		w := percent(n, whole)
		if w == 0 {
			continue
		}
		out = append(out, slice{Name: g.Name, At: at, Width: w, Class: fmt.Sprintf("s%d", i)})
		at += w
	}
	return out
}

// note is a sentence about something that a person should know.
type note struct {
	Class string // "bad" or "look"
	Text  string
}

// trouble says what is wrong, or looks wrong, with a cache.
func trouble(c cacheReport) []note {
	var out []note
	say := func(class, format string, args ...any) { out = append(out, note{class, fmt.Sprintf(format, args...)}) }
	n := c.Counts
	if k := n["deregister_errors"]; k > 0 {
		say("bad", "%s deregistrations failed: that memory stays pinned until the device is closed. Close and the log say why.", grouped(k))
	}
	if k := n["events_lost"]; k > 0 {
		say("bad", "The monitor lost events %s times, and everything was dropped each time to be safe. A larger ring would help (intercept.Config.Ring).", grouped(k))
	}
	if k := n["failures"]; k > 0 {
		say("look", "%s Gets failed: their callers have the reason.", grouped(k))
	}
	once := uint64(0)
	for _, r := range c.UsedOnce {
		once += r.Count
	}
	if misses := n["misses"]; once*2 > misses && misses > 0 {
		say("look", "%s of %s registrations were used once and dropped: see why they were not kept.", grouped(once), grouped(misses))
	}
	if k, r := n["evictions"], n["registrations"]; r >= 100 && k*2 > r {
		say("look", "%s of %s registrations were evicted: the limits are smaller than what the program works with.", grouped(k), grouped(r))
	}
	if d, u := c.Now["dead"], c.Now["pinned"]; u > 0 && d*4 > u {
		say("look", "%s are pinned by Regions that are dead and still in use: somebody holds on to memory that went away.", byteString(d))
	}
	return out
}
