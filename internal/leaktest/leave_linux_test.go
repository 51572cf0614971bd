package leaktest

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/hcasim"
)

// leave says to a child process what its test is to leave behind.
const leave = "HOLDFAST_TEST_LEAVE"

const rw = unix.PROT_READ | unix.PROT_WRITE

// kept keeps what is left reachable: the garbage collector does not clean up.
var kept []any

func keep[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	kept = append(kept, v)
	return v
}

// leaks are ways to leave something behind, and what the report has to say.
var leaks = map[string]struct {
	leave func(t *testing.T)
	want  []string // regular expressions; none: there is nothing to report
}{
	"nothing": {func(t *testing.T) {
		f, err := os.Open(t.TempDir())
		require.NoError(t, err)
		require.NoError(t, f.Close())
		mem, err := unix.Mmap(-1, 0, 1<<20, rw, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
		require.NoError(t, err)
		require.NoError(t, unix.Munmap(mem))
		done := make(chan struct{})
		go close(done)
		<-done
		for range 64 {
			_ = make([]byte, 8<<20)
		}
	}, nil},
	"goroutine":  {func(*testing.T) { go func() { select {} }() }, []string{`found unexpected goroutines`, `leave_linux_test\.go`}},
	"descriptor": {func(*testing.T) { keep(os.Open("/")) }, []string{`descriptor \d+ /\n`}},
	"socket": {func(*testing.T) { keep(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)) },
		[]string{`descriptor \d+ socket:\[\d+\]`}},
	// What a watch and a program of bpf are: descriptors of the kernel's own.
	"event queue": {func(*testing.T) { keep(unix.Eventfd(0, unix.EFD_CLOEXEC)) }, []string{`descriptor \d+ anon_inode:\[eventfd\]`}},
	"lock": {func(*testing.T) {
		mem := keep(unix.Mmap(-1, 0, 1<<20, rw, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS))
		keep(0, unix.Mlock(mem[:4096]))
	}, []string{`4096 B locked`}},
	"pin": {func(t *testing.T) {
		d := keep(hcasim.Open(hcasim.Live{}))
		if d.Attr().Lesser {
			t.Skip("nothing pins here: " + d.Attr().Form)
		}
		mem := keep(unix.Mmap(-1, 0, 1<<20, rw, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS))
		keep(d.Register(hca.RangeOf(mem[:8192]), hca.LocalWrite))
	}, []string{`8192 B pinned`, `descriptor \d+ anon_inode:\[io_uring\]`, `B mapped of anon_inode:\[io_uring\]`}},
	"shared memory": {func(*testing.T) { keep(unix.Mmap(-1, 0, 4096, rw, unix.MAP_SHARED|unix.MAP_ANONYMOUS)) },
		[]string{`4096 B mapped of /dev/zero \(deleted\)`}},
	"memory of a file": {func(*testing.T) {
		f, err := os.Open("/proc/self/exe")
		if err != nil {
			panic(err)
		}
		defer f.Close()
		keep(unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ, unix.MAP_PRIVATE))
	}, []string{`8192 B mapped of /.*leaktest\.test`}},
	"private memory": {func(t *testing.T) {
		if !seesPrivate {
			t.Skip("libc and the race detector make private memory without saying how much: needs a build without both")
		}
		keep(unix.Mmap(-1, 0, 64<<20, rw, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS))
	}, []string{`\d+ B of private memory`}},
}

// TestLeave is run by the next test in a child process. By itself it leaves
// nothing.
func TestLeave(t *testing.T) {
	if what := os.Getenv(leave); what != "" {
		leaks[what].leave(t)
	}
}

// Each kind of leak ends a binary whose tests passed with status 1 and is named.
func TestLeaksAreReported(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	for what, leak := range leaks {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestLeave$", "-test.v", "-test.timeout=60s")
			cmd.Env = append(os.Environ(), leave+"="+what, hurry+"=1")
			out, err := cmd.CombinedOutput()
			if bytes.Contains(out, []byte("--- SKIP")) {
				t.Skipf("%s", out)
			}
			require.Contains(t, string(out), "--- PASS: TestLeave")
			if leak.want == nil {
				require.NoError(t, err, "%s", out)
				return
			}
			require.Error(t, err, "%s", out)
			require.Equal(t, 1, cmd.ProcessState.ExitCode(), "%s", out)
			for _, want := range leak.want {
				require.Regexp(t, want, string(out))
			}
		})
	}
}
