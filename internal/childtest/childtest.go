// Package childtest runs the body of a test in a child process with a hard
// time limit. Tests that arm userfaultfd, change limits, drop privileges or
// may hang a thread inside the kernel use it: a hang is then a failure with
// all stacks printed, and what the body did to its process ends with it.
package childtest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const marker = "HOLDFAST_CHILD_TEST"

// patienceVar says how many times longer than usual a child may take: for
// machines that are known to be slow, as emulated ones are.
const patienceVar = "HOLDFAST_TEST_PATIENCE"

func patience(t *testing.T) time.Duration {
	s := os.Getenv(patienceVar)
	if s == "" {
		return 1
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("childtest: %s is %q, not a number from 1 on", patienceVar, s)
	}
	return time.Duration(n)
}

// Run runs body in a child process: the test binary once more, with only this
// test. The child fails this test if it fails, and if it is not done within
// limit: it is then sent SIGQUIT, which makes the Go runtime print every
// stack, and killed if that does not end it. HOLDFAST_TEST_PATIENCE in the
// environment multiplies limit. env is added to the child's environment
// ("GOMAXPROCS=1"). A body that skips, skips the test.
//
// What the caller does before Run is done in both processes: it should do
// nothing but decide whether to skip.
func Run(t *testing.T, limit time.Duration, env []string, body func(t *testing.T)) {
	t.Helper()
	if os.Getenv(marker) == t.Name() {
		body(t)
		return
	}
	out := run(t, limit, env, nil)
	if skipped(t, out) {
		t.Skipf("the child skipped:\n%s", out)
	}
	t.Logf("child:\n%s", out)
}

// run runs the child, with files as its descriptors from 3 on, and answers with
// what it printed. It ends the test if the child did not pass or skip.
func run(t *testing.T, limit time.Duration, env []string, files []*os.File) string {
	t.Helper()
	if os.Getenv(marker) != "" {
		t.Fatalf("test %s inside the child of %s", t.Name(), os.Getenv(marker))
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(t.Name(), "/")
	for i, p := range parts {
		parts[i] = "^" + p + "$"
	}
	limit *= patience(t)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, "-test.run="+strings.Join(parts, "/"), "-test.v=true", "-test.count=1")
	cmd.ExtraFiles = files
	cmd.Env = append(append(os.Environ(), env...), marker+"="+t.Name())
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) }
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		t.Fatalf("the child was not done after %v; its output:\n%s", limit, out.String())
	case err != nil:
		t.Fatalf("the child failed: %v; its output:\n%s", err, out.String())
	case !strings.Contains(out.String(), "--- PASS: "+t.Name()+" (") && !skipped(t, out.String()):
		t.Fatalf("the child ran no test:\n%s", out.String())
	}
	return out.String()
}

// skipped reports whether the child with this output skipped, not just a part of it.
func skipped(t *testing.T, out string) bool {
	return strings.Contains(out, "--- SKIP: "+t.Name()+" (")
}

// InChild reports whether this process is a child made by Run or Calls.
func InChild() bool { return os.Getenv(marker) != "" }
