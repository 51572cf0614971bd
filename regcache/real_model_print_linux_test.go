package regcache_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"example.com/holdfast/regcache"
)

// replay runs a program in the world of the given name, up to so many times, and
// fails if it does.
func replay(t *testing.T, name string, times int, r run) {
	for _, w := range append([]world{inKernel, trusting}, modelWorlds...) {
		if w.name == name {
			runInWorld(t, time.Minute, nil, w, regcache.Config{}, func(t *testing.T, k *kit) {
				m := newModel(t, k)
				for i := range times {
					if err := m.try(r); err != nil {
						t.Fatalf("run %d: %v", i+1, err)
					}
				}
			})
			return
		}
	}
	t.Fatalf("there is no world %q", name)
}

// print is the source of a Go test that replays the program.
func (r run) print(name, world, comment string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "replay(t, %q, 1000, run{\n", world)
	fmt.Fprintf(&b, "caches: %d, regions: %d, bytes: %d, merge: %d, sweep: %d,\nthreads: [][]op{\n", r.caches, r.regions, r.bytes, r.merge, int64(r.sweep))
	for _, ops := range r.threads {
		b.WriteString("{\n")
		for _, o := range ops {
			fmt.Fprintf(&b, "{%s, %d, %d, %d, %d},\n", opNames[o.kind], o.a, o.b, o.c, o.d)
		}
		b.WriteString("},\n")
	}
	b.WriteString("},\n})\n")
	return regcache.PrintTest(name, comment, b.String())
}

// Simpler steps to try in the place of o.
func simplerOp(o op) (out []op) {
	for _, n := range (regcache.Numbers{o.a, o.b, o.c, o.d}).Simpler() {
		out = append(out, op{o.kind, n[0], n[1], n[2], n[3]})
	}
	return out
}

// shrink makes a program that failed shorter, for at most 20 s, and prints it as
// a Go test. It first finds out how often the program has to be run to fail once
// more: what is tried in its place has three times as many runs.
func (m *model) shrink(r run, why error, name string) string {
	until := time.Now().Add(20 * time.Second)
	tries := 200
	fails := func(with run) bool {
		for n := range tries {
			if time.Now().After(until) {
				return false
			}
			if err := m.try(with); err != nil {
				r, why = with, err
				tries = max(tries, 3*n)
				return true
			}
		}
		return false
	}
	for again := 1; again < tries; again++ {
		if err := m.try(r); err != nil {
			tries = 3*again - 2
		}
	}
	steps := func() {
		regcache.Shrink(r.threads, simplerOp, func(threads [][]op) bool {
			with := r
			with.threads = threads
			return fails(with)
		})
	}
	steps()
	// Then the settings, as far as they do not matter.
	for _, change := range []func(*run){
		func(r *run) { r.caches = 1 }, func(r *run) { r.regions = 0 }, func(r *run) { r.bytes = 0 }, func(r *run) { r.merge = 0 }, func(r *run) { r.sweep = 0 },
	} {
		with := r
		if change(&with); fmt.Sprint(with) != fmt.Sprint(r) {
			fails(with)
		}
	}
	steps()
	comment := fmt.Sprintf("%s: found by TestModel_RealMemory in the world %q:\n%v", name, m.k.name, why)
	return r.print(name, m.k.name, comment)
}
