//go:build linux && (amd64 || arm64)

package bpf

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
	"example.com/holdfast/internal/childtest"
)

func TestConfig(t *testing.T) {
	for _, n := range []int{-1, 1, 63, 65, 1 << 21} {
		_, err := New(Config{Ring: n})
		require.ErrorIs(t, err, hca.ErrInvalid)
		require.ErrorContains(t, err, "Ring is")
	}
}

// Without the right to trace there is a clear refusal, and Auto goes on with
// what there is and says why.
func TestRefused(t *testing.T) {
	for name, forbid := range map[string]func(t *testing.T){
		"Unprivileged": func(t *testing.T) { childtest.DropPrivileges(t, 54071, 8<<20) },
		"Seccomp":      func(t *testing.T) { childtest.Forbid(t, unix.SYS_BPF) },
	} {
		t.Run(name, func(t *testing.T) {
			childtest.Run(t, patience, fastExit, func(t *testing.T) {
				forbid(t)
				_, err := New(Config{}) // the first opens what Go polls with
				require.ErrorIs(t, err, hca.ErrAccess)
				before := descriptors(t)
				_, err = New(Config{})
				require.ErrorIs(t, err, hca.ErrAccess)
				require.ErrorContains(t, err, "CAP_BPF")
				require.Equal(t, before, descriptors(t), "something was left open")
				m, err := Auto()
				require.NoError(t, err)
				require.ErrorIs(t, m.Lesser(), hca.ErrAccess)
				require.Contains(t, m.String(), "CAP_BPF")
				require.NoError(t, m.Close())
			})
		})
	}
}

// A kernel that keeps its memory secret says so. The test machine can be booted
// that way: SOFTROCE_APPEND=lockdown=confidentiality.
func TestLockdown(t *testing.T) {
	boot, err := os.ReadFile("/proc/cmdline")
	require.NoError(t, err)
	if !slices.Contains(strings.Fields(string(boot)), "lockdown=confidentiality") {
		t.Skip("this kernel was not booted with lockdown=confidentiality")
	}
	childtest.Run(t, patience, fastExit, func(t *testing.T) {
		_, err := New(Config{})
		require.ErrorIs(t, err, hca.ErrAccess)
		require.ErrorContains(t, err, "locked down (confidentiality)")
		m, err := Auto()
		require.NoError(t, err)
		require.Contains(t, m.String(), "locked down")
		require.NoError(t, m.Close())
	})
}

func TestAuto(t *testing.T) {
	childtest.Run(t, patience, fastExit, func(t *testing.T) {
		require.NoError(t, start(t, Config{}).Close())
		m, err := Auto()
		require.NoError(t, err)
		require.NoError(t, m.Lesser())
		require.Contains(t, m.String(), "programs in the kernel")
		require.NoError(t, m.Close())
	})
}

// descriptors is how many this process has open, without the one that counts.
func descriptors(t *testing.T) int {
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(all)
}

// objects are programs, links and maps, by kind and number.
type objects map[string][]uint32

// objectsOf are those that a process has descriptors of.
func objectsOf(t *testing.T, pid int) objects {
	t.Helper()
	all := objects{}
	dir := fmt.Sprintf("/proc/%d/fdinfo/", pid)
	fds, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, fd := range fds {
		text, err := os.ReadFile(dir + fd.Name())
		if errors.Is(err, os.ErrNotExist) {
			continue // the directory's own, or closed meanwhile
		}
		require.NoError(t, err)
		id := map[string]uint32{}
		for line := range strings.Lines(string(text)) {
			kind, number, _ := strings.Cut(line, "_id:")
			if n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 32); err == nil {
				id[kind] = uint32(n)
			}
		}
		if _, is := id["link"]; is {
			delete(id, "prog") // a link names its program
		}
		for _, kind := range []string{"prog", "link", "map"} {
			if n, is := id[kind]; is {
				all[kind] = append(all[kind], n)
			}
		}
	}
	return all
}

// without leaves the others away.
func (o objects) without(others objects) objects {
	rest := objects{}
	for kind, numbers := range o {
		for _, n := range numbers {
			if !slices.Contains(others[kind], n) {
				rest[kind] = append(rest[kind], n)
			}
		}
	}
	return rest
}

// living are those that the kernel still has, whoever holds them: a descriptor of
// another process, or a file that they are pinned to.
func (o objects) living(t *testing.T) objects {
	t.Helper()
	open := map[string]func(id uint32) (io.Closer, error){
		"prog": func(id uint32) (io.Closer, error) { return ebpf.NewProgramFromID(ebpf.ProgramID(id)) },
		"link": func(id uint32) (io.Closer, error) { return link.NewFromID(link.ID(id)) },
		"map":  func(id uint32) (io.Closer, error) { return ebpf.NewMapFromID(ebpf.MapID(id)) },
	}
	rest := objects{}
	for kind, numbers := range o {
		for _, n := range numbers {
			it, err := open[kind](n)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			require.NoError(t, err)
			require.NoError(t, it.Close())
			rest[kind] = append(rest[kind], n)
		}
	}
	return rest
}

// end waits until the kernel has none of them any more. It frees them some time
// after the last that held them let go, and does not tell when.
func (o objects) end(t *testing.T) {
	t.Helper()
	var left objects
	defer func() {
		if t.Failed() {
			t.Logf("left in the kernel: %v", left)
		}
	}()
	require.Eventually(t, func() bool { left = o.living(t); return len(left) == 0 }, 20*time.Second, time.Millisecond)
}

// complete insists that these are what a monitor has.
func (o objects) complete(t *testing.T) {
	t.Helper()
	require.GreaterOrEqual(t, len(o["prog"]), 2, "%v", o)
	require.Len(t, o["link"], len(o["prog"]), "%v", o)
	require.Len(t, o["map"], 3)
	require.Equal(t, o, o.living(t))
}

func TestClose(t *testing.T) {
	childtest.Run(t, patience, fastExit, func(t *testing.T) {
		require.NoError(t, start(t, Config{}).Close())
		before := descriptors(t)
		foreign := objectsOf(t, os.Getpid())
		m := start(t, Config{})
		ours := objectsOf(t, os.Getpid()).without(foreign)
		ours.complete(t)
		counter := m.Counter()
		f, err := m.Subscribe(nil)
		require.NoError(t, err)
		require.ErrorIs(t, m.Close(), hca.ErrBusy)
		require.NoError(t, f.Close())
		require.NoError(t, m.Close())
		require.ErrorIs(t, m.Close(), hca.ErrClosed)
		require.Equal(t, before, descriptors(t))
		a := memory(t, 1)
		munmap(t, a)
		require.NotZero(t, counter.Load()&hca.Unsettled, "nothing is vouched for any more")
		require.Equal(t, hca.UnkeptNoSource, m.Watch(memory(t, 1)).Why)
		// What came before may still be read, and what comes now does not.
		var buf [4]hca.Event
		for n := f.Next(buf[:]); n > 0; n = f.Next(buf[:]) {
			require.NotContains(t, buf[:n], hca.Event{Range: a, Cause: hca.CauseUnmap})
		}
		require.Contains(t, m.String(), "closed")
		// Nothing is left in the kernel but the one block, which goes with the
		// monitor: the counter may be read until then.
		require.Eventually(t, func() bool {
			left := ours.living(t)
			return len(left) == 1 && len(left["map"]) == 1
		}, 20*time.Second, time.Millisecond)
		runtime.KeepAlive(m)
		m, f, counter = nil, nil, nil
		require.Eventually(t, func() bool { runtime.GC(); return len(ours.living(t)) == 0 }, 20*time.Second, time.Millisecond)
	})
}

// Who wants to be woken is, soon, and once for many events at most so often.
func TestWake(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		woken := make(chan struct{}, 1)
		f, err := m.Subscribe(func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		})
		require.NoError(t, err)
		defer f.Close()
		for range 100 {
			munmap(t, memory(t, 1))
			for mine := false; !mine; {
				select {
				case <-woken:
				case <-time.After(10 * time.Second):
					t.Fatal("nobody was woken")
				}
				var buf [16]hca.Event
				for n := f.Next(buf[:]); n > 0; n = f.Next(buf[:]) {
					mine = true
				}
			}
		}
	})
}

// ready waits until the process that writes out has a monitor; false if it
// ended without.
func ready(out io.Reader) bool {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "ready ") {
			return true
		}
	}
	return false
}

// victimVar says to the process of victim which source its monitor has.
const victimVar = "HOLDFAST_BPF_VICTIM"

// victim starts another process that makes a monitor of a source, one of sources,
// writes that it is ready, and does nothing more.
func victim(t testing.TB, source string) (*exec.Cmd, io.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), victimVar+"="+source)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return cmd, out
}

// A process that is killed leaves nothing in the kernel.
func TestKilled(t *testing.T) {
	if source := os.Getenv(victimVar); source != "" {
		for _, s := range sources {
			if s.name == source {
				m, err := s.open()
				require.NoError(t, err)
				os.Stdout.WriteString("\nready " + m.String() + "\n")
				select {}
			}
		}
		t.Fatal(source)
	}
	require.NoError(t, start(t, Config{}).Close())
	cmd, out := victim(t, "bpf")
	require.True(t, ready(out), "the other process got no monitor")
	its := objectsOf(t, cmd.Process.Pid)
	its.complete(t)
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	its.end(t)
}
