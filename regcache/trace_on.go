//go:build race || holdfast_debug

package regcache

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
)

// In builds with the race detector or the tag holdfast_debug every reference is
// traced, so that one that was forgotten, or given back twice, is named by the
// place in the program; and a Region that was deregistered is poisoned: its keys
// are changed to values that no device gives out, by a plain write, so that the
// race detector also catches who still reads them.
const debugging = true

// poisonKey is recognised at sight.
const poisonKey uint32 = 0xdeadbee5

// trace is what is remembered of one Region.
type trace struct {
	mu       sync.Mutex
	gets     []site  // guarded by mu: references that are out, oldest first
	releases [4]site // guarded by mu: the last ones
	released int     // guarded by mu: how many there were
}

// site is a few return addresses, innermost first.
type site [6]uintptr

func here(skip int) (s site) {
	runtime.Callers(skip+2, s[:])
	return s
}

func (s site) String() string {
	n := 0
	for n < len(s) && s[n] != 0 {
		n++
	}
	if n == 0 {
		return "unknown"
	}
	var b strings.Builder
	frames := runtime.CallersFrames(s[:n])
	for {
		f, more := frames.Next()
		if !strings.Contains(f.Function, "/regcache.(*") {
			fmt.Fprintf(&b, "%s (%s:%d)", f.Function, f.File, f.Line)
			return b.String()
		}
		if !more {
			return "inside the cache"
		}
	}
}

func (r *Region) traceGet() {
	t := &r.cold.trace
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gets = append(t.gets, here(1))
}

// traceRelease forgets one reference; which of several it was cannot be told,
// so the oldest.
func (r *Region) traceRelease() {
	t := &r.cold.trace
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.gets) > 0 {
		t.gets = t.gets[1:]
	}
	t.releases[t.released%len(t.releases)] = here(1)
	t.released++
}

// traceHolders names who has references.
func (r *Region) traceHolders() []string {
	t := &r.cold.trace
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for _, s := range t.gets {
		out = append(out, fmt.Sprintf("%v got at %v", r.Range(), s))
	}
	return out
}

// traceReleases names the last places of Release before the present one.
func (r *Region) traceReleases() string {
	t := &r.cold.trace
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for i := max(0, t.released-len(t.releases)); i < t.released; i++ {
		out = append(out, t.releases[i%len(t.releases)].String())
	}
	return "; released before at " + strings.Join(out, ", ")
}

func (r *Region) tracePoison() { r.lkey, r.rkey = poisonKey, poisonKey }
