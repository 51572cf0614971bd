package compare

import (
	"fmt"
	"strings"
)

// same is how far from 1 a ratio may be and still count as no difference:
// what two runs of the same thing differ by on a machine that does other work.
const same = 0.10

// Conclude says in one sentence for each backend what the table shows:
// with which buffers it beats the first backend, with which it makes no
// difference, and with which it loses, each with the mean of the ratios over
// the sizes shown. It is empty where there is nothing to compare.
func (t *Table) Conclude() string {
	if len(t.Sizes()) == 0 {
		return ""
	}
	var sentences []string
	for _, b := range t.backends[1:] {
		var wins, draws, losses []string
		for _, kind := range t.buffers {
			m, ok := t.mean(b, kind)
			if !ok {
				continue
			}
			text := fmt.Sprintf("%s %.2fx", kind, m)
			switch {
			case m < 1-same:
				wins = append(wins, text)
			case m > 1+same:
				losses = append(losses, text)
			default:
				draws = append(draws, text)
			}
		}
		var parts []string
		for _, p := range []struct {
			text  string
			kinds []string
		}{
			{"is faster than " + t.base() + " with", wins},
			{"makes no difference with", draws},
			{"is slower with", losses},
		} {
			if len(p.kinds) > 0 {
				parts = append(parts, p.text+" "+strings.Join(p.kinds, ", "))
			}
		}
		if len(parts) > 0 {
			sentences = append(sentences, b+" "+strings.Join(parts, "; ")+".")
		}
	}
	return strings.Join(sentences, " ")
}
