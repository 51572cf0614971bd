package imb

import (
	"fmt"
	"strconv"
	"strings"
)

// Iter is how many repetitions a sample has, as -iter says it.
type Iter struct {
	MsgsPerSample int // repetitions of small messages
	OverallVol    int // MiB that one sample moves at most; fewer repetitions of large ones follow
	MsgsNonAggr   int // taken for the sake of existing scripts; the benchmarks here do not use it
}

// DefaultIter is 1000,40,100.
var DefaultIter = Iter{MsgsPerSample: 1000, OverallVol: 40, MsgsNonAggr: 100}

// ParseIter reads one to three positive numbers separated by commas; those
// left out keep their defaults.
func ParseIter(s string) (Iter, error) {
	it := DefaultIter
	parts := strings.Split(s, ",")
	if len(parts) > 3 {
		return Iter{}, fmt.Errorf("%q has more than three numbers (repetitions, MiB, not aggregated)", s)
	}
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil || n < 1 || n > 1<<30 {
			return Iter{}, fmt.Errorf("%q is not one to three positive numbers (repetitions, MiB, not aggregated)", s)
		}
		*[]*int{&it.MsgsPerSample, &it.OverallVol, &it.MsgsNonAggr}[i] = n
	}
	return it, nil
}

// String writes what ParseIter reads.
func (it Iter) String() string {
	return fmt.Sprintf("%d,%d,%d", it.MsgsPerSample, it.OverallVol, it.MsgsNonAggr)
}

// Select is the number of repetitions for messages of that size, before time
// is looked at.
func (it Iter) Select(size int) int {
	if size == 0 {
		return it.MsgsPerSample
	}
	return max(1, min(it.OverallVol<<20/size, it.MsgsPerSample))
}

// Dynamic is the number of repetitions under the dynamic policy: what Select
// says, not more than the size before had, and what fits into secs seconds
// when one takes t seconds. prev is 0 for the first size.
func (it Iter) Dynamic(size, prev int, secs, t float64) int {
	n := it.Select(size)
	if prev > 0 {
		n = min(n, prev)
	}
	if t > 0 {
		if fit := secs / t; fit < float64(n) {
			n = min(n, 1+int(fit))
		}
	}
	return n
}

// WarmUp is how many repetitions come before the n that are measured: a tenth,
// at least 10, at most n.
func WarmUp(n int) int { return min(n, max(10, n/10)) }
