// Package leaktest looks, at the end of a test binary, for what its tests left
// behind: goroutines, descriptors, pinned and locked memory, threads, mappings.
//
// Every test package of the project has
//
//	func TestMain(m *testing.M) { leaktest.Main(m) }
//
// A child process of package childtest is the same binary, so it is looked at in
// the same way when its body is done.
//
// What a watch of userfaultfd or a program of bpf is made of is held by
// descriptors, and by mappings of them: the kernel ends both when the last of
// those is gone. So they are found as the descriptors and mappings that they are,
// and named as such ("anon_inode:[userfaultfd]", "anon_inode:bpf-prog").
package leaktest

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs the tests and ends the process: with status 1 if they all passed and
// something is left.
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run is Main for a TestMain that has more to do: it answers with the status.
func Run(m *testing.M) int {
	before := take()
	status := m.Run()
	if status != 0 {
		return status // a test that failed had no chance to clean up
	}
	if left := before.left(); len(left) > 0 {
		fmt.Fprintln(os.Stderr, "leaktest: the tests passed, but left behind:")
		for _, l := range left {
			fmt.Fprintln(os.Stderr, "  "+l)
		}
		return 1
	}
	return 0
}

// patience is how long what is left may take to go: a goroutine that was told to
// end has to be scheduled, and the kernel ends a ring, and unpins what was
// registered with it, some time after its descriptor was closed. Nothing tells
// when, so it is looked again; only who leaks waits for all of it.
func patience() time.Duration {
	if os.Getenv(hurry) != "" {
		return time.Second
	}
	return 10 * time.Second
}

// hurry makes patience short: for the test of this package that leaks on purpose.
const hurry = "HOLDFAST_TEST_HURRY"

// left is what is there now that was not there before, in words.
//
// A descriptor that only the garbage collector would close is left. A mapping that
// it would unmap is not: what may be read after Close, like the counter of a
// monitor that shares it with the kernel, is bound to the life of its object.
func (before *holdings) left() []string {
	left := await(func() []string { return before.handles(take()) })
	left = append(left, await(func() []string {
		runtime.GC()
		return before.mappings(take())
	})...)
	if err := goleak.Find(); err != nil { // has a patience of its own
		left = append(left, err.Error())
	}
	return left
}

// await looks until nothing is left, within patience.
func await(look func() []string) []string {
	end := time.Now().Add(patience())
	for pause := time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		left := look()
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
		time.Sleep(pause)
	}
}
