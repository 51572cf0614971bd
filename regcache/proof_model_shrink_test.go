package regcache

import (
	"flag"
	"fmt"
	"go/format"
	"slices"
	"strings"

	"pgregory.net/rapid"
)

// A program of a model test is data: some settings, and for each of its threads
// a list of steps, which are a kind and a few small numbers. How the numbers are
// meant depends on what is there when the step is done, so every list is a
// program, and one that fails can be made shorter and be printed as a Go test.
// What both models need for that is here; it is exported for the tests outside
// the package.
//
// rapid draws the programs. It does not shrink them, because it takes for the
// same failure only what fails with the same words at the first try, and a
// program of several threads does not do it that favour.

// NoShrinking has rapid draw only, and leave no files; what it answers with puts
// things back. rapid's flags are the process's.
func NoShrinking() (restore func()) {
	was := map[string]string{}
	for name, value := range map[string]string{"rapid.nofailfile": "true", "rapid.shrinktime": "0s"} {
		f := flag.Lookup(name)
		was[name] = f.Value.String()
		if err := f.Value.Set(value); err != nil {
			panic(err)
		}
	}
	return func() {
		for name, value := range was {
			if err := flag.Set(name, value); err != nil {
				panic(err)
			}
		}
	}
}

// Numbers are the numbers of a step.
type Numbers [4]uint8

// DrawBits draws a number of n bits, all of them alike: rapid's own integers are
// small as a rule.
func DrawBits(t *rapid.T, n int) uint8 {
	x := uint8(0)
	for range n {
		x <<= 1
		if rapid.Bool().Draw(t, "") {
			x |= 1
		}
	}
	return x
}

// Spread has each kind of step as often as often says, to be drawn by a number
// below places.
func Spread[K ~uint8](often map[K]int, kinds K, places int) (w []K) {
	for k := range kinds {
		for range often[k] {
			w = append(w, k)
		}
	}
	if len(w) != places {
		panic(fmt.Sprintf("%d kinds for %d places", len(w), places))
	}
	return w
}

// DrawNumbers draws those of a step.
func DrawNumbers(t *rapid.T) (n Numbers) {
	for i := range n {
		n[i] = DrawBits(t, 8)
	}
	return n
}

// Simpler are numbers to try in the place of n.
func (n Numbers) Simpler() (out []Numbers) {
	for i, x := range n {
		for _, y := range []uint8{0, x / 2, x - 1} {
			if m := n; x > 0 && y < x {
				m[i] = y
				out = append(out, m)
			}
		}
	}
	return out
}

// Shrink makes a program that fails shorter for as long as what is left of it
// fails: it leaves out threads, then runs of steps, then makes numbers smaller.
// fails is also what bounds its time: it says no once there is enough.
func Shrink[S any](threads [][]S, simpler func(S) []S, fails func([][]S) bool) [][]S {
	try := func(i int, steps []S) bool {
		with := slices.Clone(threads)
		if with[i] = steps; steps == nil {
			with = slices.Delete(with, i, i+1)
		}
		if !fails(with) {
			return false
		}
		threads = with
		return true
	}
	for changed := true; changed; {
		changed = false
		for i := len(threads) - 1; i >= 0 && len(threads) > 1; i-- {
			changed = try(i, nil) || changed
		}
		for i := range threads {
			for n := len(threads[i]); n >= 1; n /= 2 {
				for at := 0; at < len(threads[i]); {
					steps := slices.Delete(slices.Clone(threads[i]), at, min(at+n, len(threads[i])))
					if try(i, steps) {
						changed = true
					} else {
						at += n
					}
				}
			}
			for at := range threads[i] {
				for again := true; again; {
					again = false
					for _, s := range simpler(threads[i][at]) {
						steps := slices.Clone(threads[i])
						if steps[at] = s; try(i, steps) {
							again, changed = true, true
							break
						}
					}
				}
			}
		}
	}
	return threads
}

// PrintTest is the source of a Go test that replays a program: a comment that
// says how it failed, a function named name, and the body.
func PrintTest(name, comment, body string) string {
	if len(comment) > 2000 {
		comment = comment[:2000] + " ..."
	}
	var b strings.Builder
	for line := range strings.Lines(comment) {
		fmt.Fprintf(&b, "// %s\n", strings.TrimRight(line, "\n"))
	}
	fmt.Fprintf(&b, "func %s(t *testing.T) {\n%s}\n", name, body)
	src, err := format.Source([]byte(b.String()))
	if err != nil {
		panic(fmt.Sprintf("%v in:\n%s", err, b.String()))
	}
	return string(src)
}
