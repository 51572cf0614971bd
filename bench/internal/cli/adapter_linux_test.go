package cli

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// adapter is the real adapter that HOLDFAST_ADAPTER names. Without one the test
// skips; .ci/softroce has one.
func adapter(t *testing.T) string {
	t.Helper()
	name := os.Getenv("HOLDFAST_ADAPTER")
	if name == "" {
		t.Skip("needs a real adapter, and HOLDFAST_ADAPTER names none; .ci/softroce runs a machine with one")
	}
	return "verbs:" + name
}

// Two ranks in one process and in two: every byte of every message is right in
// both, and only rank 0 prints.
func TestAdapterPingPong(t *testing.T) {
	device := adapter(t)
	for _, ranks := range []string{"thread", "process"} {
		out, errs, status := bench(t, "-device", device, "-trust-odp", "-ranks", ranks, "-msglog", "10:16", "-iter", "5,4", "-time", "0.02",
			"-buffers", "same,fresh", "PingPong")
		t.Logf("%s", out)
		require.Zero(t, status, "%s\n%s", out, errs)
		require.Empty(t, errs)
		require.Equal(t, ranks == "process", strings.Contains(out, "# Ranks                 : each in a process of its own\n"))
		require.Equal(t, 1, strings.Count(out, "# Date "))
		require.Equal(t, 2*(3-strings.Count(out, ": not run, ")), strings.Count(out, "# Benchmarking PingPong \n"))
		require.Contains(t, out, "Every byte of every message was checked: none was wrong.")
		require.NotContains(t, out, "out-of-mem")
	}
}

// apart is a run with a rank in each of two processes, in the middle of a
// sample that is longer than any test.
type apart struct {
	*exec.Cmd
	errs  bytes.Buffer
	rank1 int // its process
}

func startApart(t *testing.T) *apart {
	t.Helper()
	a := &apart{Cmd: command(t, "-device", adapter(t), "-ranks", "process", "-msglog", "6:6", "-iter", "1000000,1000000", "-time", "3600",
		"-backend", "pin", "-buffers", "same")}
	a.Stderr = &a.errs
	stdout, err := a.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, a.Start())
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "#repetitions") { // the pair is made; what comes next is the sample
			break
		}
	}
	if lines.Err() != nil || !strings.Contains(lines.Text(), "#repetitions") {
		_ = a.Wait()
		require.Fail(t, "no sample began", "%v %s", lines.Err(), a.errs.String())
	}
	procs, err := procfs.AllProcs()
	require.NoError(t, err)
	for _, p := range procs {
		if st, err := p.Stat(); err == nil && st.PPID == a.Process.Pid {
			a.rank1 = p.PID
		}
	}
	require.NotZero(t, a.rank1)
	return a
}

// Rank 1 is killed in the middle of a sample: the command ends at once, and
// says what happened.
func TestAdapterRank1IsKilled(t *testing.T) {
	a := startApart(t)
	require.NoError(t, syscall.Kill(a.rank1, syscall.SIGKILL))
	require.Error(t, a.Wait())
	require.Equal(t, 1, a.ProcessState.ExitCode(), "%v", a.ProcessState)
	require.Contains(t, a.errs.String(), "rank 1 is gone")
	require.Contains(t, a.errs.String(), "signal: killed")
}

// Rank 0 is killed in the middle of a sample: rank 1 does not stay.
func TestAdapterRank0IsKilled(t *testing.T) {
	a := startApart(t)
	rank1, err := unix.PidfdOpen(a.rank1, 0)
	require.NoError(t, err)
	defer unix.Close(rank1)
	require.NoError(t, a.Process.Kill())
	require.Error(t, a.Wait())
	ended := []unix.PollFd{{Fd: int32(rank1), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(ended, int(limit.Milliseconds())/2)
		if err == unix.EINTR {
			continue
		}
		require.NoError(t, err)
		require.Equal(t, 1, n, "process %d lives on", a.rank1)
		break
	}
}
