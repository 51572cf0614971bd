package compare

import (
	"fmt"
	"strings"
)

// noDifference is how far from 1 a ratio may be and still count as no difference:
// what two runs of the same thing differ by on a machine that does other work.
const noDifference = 0.10

// Conclude says in a sentence what the table shows: for each backend with
// which buffers it saves time against the first one, with which it makes no
// difference and with which it costs time, each with the mean of the ratios
// over the sizes shown; and which is the fastest over all of it. It is empty
// where there is nothing to compare.
func (t *Table) Conclude() string {
	if len(t.Sizes()) == 0 {
		return ""
	}
	var clauses []string
	best, bestMean := t.base(), 1.0
	for _, b := range t.backends[1:] {
		if c := t.clause(b); c != "" {
			clauses = append(clauses, c)
		}
		if m, ok := t.overall(b); ok && m < bestMean {
			best, bestMean = b, m
		}
	}
	if len(clauses) == 0 {
		return ""
	}
	return fmt.Sprintf("Against %s, %s; the fastest over all of it is %s (%.2fx).",
		t.base(), strings.Join(clauses, "; "), best, bestMean)
}

// clause is what there is to say of one backend.
func (t *Table) clause(b string) string {
	var saves, even, costs []string
	for _, kind := range t.buffers {
		m, ok := t.mean(b, kind)
		if !ok {
			continue
		}
		text := fmt.Sprintf("%s (%.2fx)", kind, m)
		switch {
		case m < 1-noDifference:
			saves = append(saves, text)
		case m > 1+noDifference:
			costs = append(costs, text)
		default:
			even = append(even, text)
		}
	}
	var parts []string
	for _, p := range []struct {
		verb  string
		kinds []string
	}{{"saves time with", saves}, {"makes no difference with", even}, {"costs time with", costs}} {
		if len(p.kinds) > 0 {
			parts = append(parts, p.verb+" "+and(p.kinds))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return b + " " + and(parts)
}

// and joins words as people do.
func and(words []string) string {
	n := len(words)
	if n == 1 {
		return words[0]
	}
	return strings.Join(words[:n-1], ", ") + " and " + words[n-1]
}
