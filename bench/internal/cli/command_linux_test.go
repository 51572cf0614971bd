package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/bench/internal/memory"
	"example.com/holdfast/internal/childtest"
	"example.com/holdfast/internal/leaktest"
)

// limit is how long one run of the command may take here.
const limit = 2 * time.Minute

// asCommand makes the test binary be the command: the command is tested as a
// user runs it, as a process of its own, without building it once more. What
// follows it are the command's arguments.
const asCommand = "HOLDFAST_AS_BENCH"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(Main(os.Args[1:], os.Stdout, os.Stderr))
	}
	leaktest.Main(m)
}

// command is a run of bench that is killed after limit.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	// Not by its path: another user may not be let into its directory.
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	return cmd
}

// bench runs the command and gives what it printed and its exit status.
func bench(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := command(t, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		require.IsType(t, &exec.ExitError{}, err, "%v", err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

var number = regexp.MustCompile(`\d+(\.\d+)?`)

// masked replaces measured numbers of the rows under a title, and what differs
// between machines, so that the layout is left. Widths stay.
func masked(out string) string {
	var b strings.Builder
	for _, line := range strings.SplitAfter(out, "\n") {
		switch {
		case strings.HasPrefix(line, "# Date "), strings.HasPrefix(line, "# Machine "), strings.HasPrefix(line, "# System "),
			strings.HasPrefix(line, "# Release "), strings.HasPrefix(line, "# Version "), strings.HasPrefix(line, "# Devices "),
			strings.HasPrefix(line, "# Interception "):
			line = line[:strings.Index(line, ":")+1] + " ...\n"
		case strings.HasPrefix(line, " "):
			line = number.ReplaceAllStringFunc(line, func(n string) string {
				if !strings.Contains(n, ".") {
					return n
				}
				return strings.Repeat("9", len(n)-3) + ".99"
			})
			// A time may have one digit more or less: the column is what counts.
			line = regexp.MustCompile(` *9+\.99`).ReplaceAllStringFunc(line, func(n string) string {
				return fmt.Sprintf("%*s", len(n), "9.99")
			})
		}
		b.WriteString(line)
	}
	return b.String()
}

func TestLayout(t *testing.T) {
	out, errs, status := bench(t, "-msglog", "5:6", "-iter", "20", "-backend", "direct,pin", "-buffers", "same", "PingPong")
	require.Zero(t, status, errs)
	require.Empty(t, errs, "standard error is no terminal: no progress")
	got := masked(out)
	cut := strings.Index(got, "# Against direct,") // the conclusion follows from the figures
	end := strings.Index(got, "# Every byte")
	require.Positive(t, cut, out)
	require.Greater(t, end, cut, out)
	if busy := strings.Index(got, "# The machine was busy"); busy >= 0 {
		foot := strings.Index(got, "\n\n# All processes")
		got = got[:busy] + got[foot:]
	}
	require.Equal(t, `#----------------------------------------------------------------
#    holdfast bench, layout of Intel(R) MPI Benchmarks 2021.11
#----------------------------------------------------------------
# Date                  : ...
# Machine               : ...
# System                : ...
# Release               : ...
# Version               : ...
# Devices               : ...
# Interception          : ...


# Calling sequence was: 

# bench -msglog 5:6 -iter 20 -backend direct,pin -buffers same PingPong

# Minimum message length in bytes:   0
# Maximum message length in bytes:   64
#
# MPI_Datatype                   :   MPI_BYTE 
# MPI_Datatype for reductions    :   MPI_FLOAT 
# MPI_Op                         :   MPI_SUM  
# 
# 

# List of Benchmarks to run:

# PingPong

# t is half a repetition: registering, moving and, where buffers are new each time,
# mapping and unmapping them. Filling and checking every byte is not in it.

# Backend               : direct (pin on live0, registered and deregistered for each transfer)
# Buffers               : same

#---------------------------------------------------
# Benchmarking PingPong 
# #processes = 2 
#---------------------------------------------------
       #bytes #repetitions      t[usec]   Mbytes/sec
            0           20         9.99         9.99
           32           20         9.99         9.99
           64           20         9.99         9.99

# Backend               : pin (pin on live0, up to 8 registrations kept)
# Buffers               : same

#---------------------------------------------------
# Benchmarking PingPong 
# #processes = 2 
#---------------------------------------------------
       #bytes #repetitions      t[usec]   Mbytes/sec
            0           20         9.99         9.99
           32           20         9.99         9.99
           64           20         9.99         9.99

#------------------------------------------------------------------
# Backends compared: median t[usec] of a message, and times that of direct
#------------------------------------------------------------------
        buffers       #bytes       direct          pin   pin/direct
           same           64         9.99         9.99         9.99

# Every byte of every message was checked: none was wrong.


# All processes entering MPI_Finalize

`, got[:cut]+got[end:])
}

// All backends with all kinds of buffers, as the default run has them.
func TestEverything(t *testing.T) {
	out, errs, status := bench(t, "-msglog", "0:16", "-iter", "10")
	require.Zero(t, status, errs)
	require.Equal(t, 12, strings.Count(out, "# Benchmarking PingPong \n"), out)
	require.Contains(t, out, "none was wrong")
	require.NotContains(t, out, "out-of-mem", out)
}

func TestStale(t *testing.T) {
	out, errs, status := bench(t, "stale", "-iter", "30")
	require.Zero(t, status, "%s\n%s", out, errs)
	require.Empty(t, errs)
	requireOnIsRight(t, out)
}

var on = regexp.MustCompile(`(?m)^(mapped memory|Go heap|another thread) +on +\d+ +\d+ +[1-9]\d* +0$`)

// requireOnIsRight: each loop with interception ran, with hits, and no wrong byte.
func requireOnIsRight(t *testing.T, out string) {
	t.Helper()
	require.Len(t, on.FindAllString(out, -1), 3, out)
}

// The race detector sees the whole program here, where it is in this process.
func TestInThisProcess(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		for _, args := range [][]string{{"-msglog", "10:14", "-iter", "20"}, {"stale", "-iter", "20"}} {
			var stdout, stderr bytes.Buffer
			require.Zero(t, Main(args, &stdout, &stderr), "%s\n%s", stdout.String(), stderr.String())
		}
	})
}

// A container's profile that forbids io_uring and userfaultfd: both commands
// of the README work, and say what runs.
func TestForbidden(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		childtest.Forbid(t, unix.SYS_IO_URING_SETUP, unix.SYS_USERFAULTFD) // children inherit it
		forbidden(t)
	})
}

func forbidden(t *testing.T) {
	out, errs, status := bench(t, "-msglog", "12:16", "-iter", "10")
	require.Zero(t, status, "%s\n%s", out, errs)
	require.Empty(t, errs)
	require.Contains(t, out, "lesser form")
	require.Contains(t, out, "explicit calls only")
	require.Contains(t, out, "buffers are mapped through it")
	require.Contains(t, out, "none was wrong")

	out, errs, status = bench(t, "stale", "-iter", "10")
	require.Zero(t, status, "%s\n%s", out, errs)
	require.Empty(t, errs)
	require.Contains(t, out, "lesser form")
	require.Contains(t, out, "This form of the device has no stale pages")
	require.Equal(t, 3, strings.Count(out, "cannot be shown\n"), out)
	requireOnIsRight(t, out)
}

// An ordinary user, with the usual small limit of locked memory: what cannot
// be pinned gets a row that says so, and the rest runs.
func TestOrdinaryUser(t *testing.T) {
	for i, seccomp := range []bool{false, true} {
		t.Run(fmt.Sprintf("forbidden=%v", seccomp), func(t *testing.T) {
			childtest.Run(t, limit, nil, func(t *testing.T) {
				if seccomp {
					childtest.Forbid(t, unix.SYS_IO_URING_SETUP, unix.SYS_USERFAULTFD)
				}
				childtest.DropPrivileges(t, 54210+i, 1<<20)
				out, errs, status := bench(t, "-msglog", "16:20", "-iter", "10", "-buffers", "same,pool")
				require.Zero(t, status, "%s\n%s", out, errs)
				require.Contains(t, out, "      1048576 out-of-mem.; ", "two ranks cannot pin 1 MiB each")
				require.Regexp(t, `(?m)^ +65536 +10 +`, out)
				require.Contains(t, out, "samples did not run for want of memory")
				odp := out[strings.LastIndex(out, "# Backend "):]
				require.NotContains(t, odp, "out-of-mem.;", "what is on demand is not pinned")

				out, errs, status = bench(t, "stale", "-iter", "10")
				require.Zero(t, status, "%s\n%s", out, errs)
			})
		})
	}
}

func TestEnough(t *testing.T) {
	require.NoError(t, enough(memory.Pool, 1<<30, 0), "not known")
	require.NoError(t, enough(memory.Same, 1<<20, 8<<20))
	require.ErrorIs(t, enough(memory.Same, 1<<20, 8<<20-2), errOutOfMemory)
	require.ErrorContains(t, enough(memory.Pool, 1<<30, 16<<30), "needed 24 GiB, more than half of the 16 GiB available")
	require.NotZero(t, available())
}

// Output that cannot be written is a failure.
func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	var errs bytes.Buffer
	cmd := command(t, "-msglog", "0:1", "-iter", "2", "-backend", "odp", "-buffers", "same")
	cmd.Stdout, cmd.Stderr = full, &errs
	require.Error(t, cmd.Run())
	require.Equal(t, 1, cmd.ProcessState.ExitCode())
	require.Contains(t, errs.String(), "no space left")
}

// On a terminal there is progress, in one line that is taken away at the end.
func TestProgressOnATerminal(t *testing.T) {
	master, slave := terminal(t)
	cmd := command(t, "-msglog", "0:1", "-iter", "2", "-backend", "odp", "-buffers", "same")
	cmd.Stderr = slave
	require.NoError(t, cmd.Run())
	require.NoError(t, slave.Close())
	got, err := io.ReadAll(master)
	require.ErrorIs(t, err, unix.EIO, "nobody has the other end open any more")
	require.Contains(t, string(got), "\r\x1b[Kodp, same buffers, 0 bytes")
	require.True(t, strings.HasSuffix(string(got), "\r\x1b[K"), "%q", got)
	require.NotContains(t, string(got), "\n")
}

// terminal opens a pseudo-terminal.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile(filepath.Join("/dev", "ptmx"), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("this machine has no pseudo-terminals: %v", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	fd := int(master.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("this machine has no pseudo-terminals: %v", err)
	}
	return master, slave
}
