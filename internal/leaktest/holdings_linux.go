package leaktest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// holdings is what a process holds of the kernel's, as /proc/self tells it.
type holdings struct {
	fds            map[string]bool   // "number target"
	threads        map[string]int    // those with a name of their own
	pinned, locked uint64            // bytes
	mapped         map[string]uint64 // bytes, by what is mapped
	private, sys   uint64            // bytes, see private
}

// take looks. What cannot be looked at ends the process: a check that sees
// nothing would pass.
func take() *holdings {
	// The runtime opens the descriptors of its poller when the first file needs
	// it: they are to be there from the beginning.
	if r, w, err := os.Pipe(); err == nil {
		_, _ = r.Close(), w.Close()
	}
	self := must(procfs.Self())
	status := must(self.NewStatus())
	h := &holdings{fds: map[string]bool{}, threads: map[string]int{}, mapped: map[string]uint64{},
		pinned: status.VmPin, locked: status.VmLck}
	const dir = "/proc/self/fd/"
	for _, fd := range must(os.ReadDir(dir)) {
		target, err := os.Readlink(dir + fd.Name())
		if err != nil || filepath.Dir(target) == "/proc/"+strconv.Itoa(os.Getpid()) {
			continue // the directory's own: closed by now, or not yet
		}
		if target == "anon_inode:seccomp notify" {
			continue // childtest's, which answers to a child's calls until its end
		}
		h.fds[fd.Name()+" "+target] = true
	}
	own := comm("self")
	for _, task := range must(os.ReadDir("/proc/self/task")) {
		if name := comm("self/task/" + task.Name()); name != own && name != "" {
			h.threads[name]++
		}
	}
	maps := must(self.ProcMaps())
	for _, m := range maps {
		if name := nameOf(m); name != "" {
			h.mapped[name] += size(m)
		}
	}
	h.private, h.sys = private(maps)
	return h
}

func must[T any](v T, err error) T {
	if err != nil {
		panic("leaktest: cannot look at this process: " + err.Error())
	}
	return v
}

// comm is the name of a process or thread; "" if it ended meanwhile. The Go
// runtime does not name its threads, they have the name of the process. The kernel
// names its workers of a ring ("iou-wrk-1234"), and a monitor its reader.
func comm(who string) string {
	b, _ := os.ReadFile("/proc/" + who + "/comm")
	return strings.TrimRight(strings.TrimSpace(string(b)), "-0123456789")
}

func size(m *procfs.ProcMap) uint64 { return uint64(m.EndAddr - m.StartAddr) }

// nameOf is by what name a mapping is compared: that of what is mapped, or "" if
// nobody but runtimes can have mapped it. Nothing but a test, or what it tests,
// maps files, devices, rings or shared memory ("/dev/zero (deleted)") while tests
// run; libc loads a library now and then.
func nameOf(m *procfs.ProcMap) string {
	switch name := m.Pathname; {
	case strings.HasPrefix(name, "["), strings.Contains(filepath.Base(name), ".so"):
		return ""
	case name == "" && m.Perms.Shared:
		return "shared memory"
	default:
		return name
	}
}

// handles says which descriptors, threads and pins are there now that were not
// before.
func (before *holdings) handles(now *holdings) (left []string) {
	for fd := range now.fds {
		if !before.fds[fd] {
			left = append(left, "descriptor "+fd)
		}
	}
	for name, n := range now.threads {
		if n > before.threads[name] {
			left = append(left, fmt.Sprintf("%d threads %q", n-before.threads[name], name))
		}
	}
	if now.pinned > before.pinned {
		left = append(left, fmt.Sprintf("%d B pinned", now.pinned-before.pinned))
	}
	if now.locked > before.locked {
		left = append(left, fmt.Sprintf("%d B locked", now.locked-before.locked))
	}
	slices.Sort(left)
	return left
}

// mappings says what more is mapped now than before.
func (before *holdings) mappings(now *holdings) (left []string) {
	for name, n := range now.mapped {
		if n > before.mapped[name] {
			left = append(left, fmt.Sprintf("%d B mapped of %s", n-before.mapped[name], name))
		}
	}
	if now.private > before.private+slack(now.sys) {
		left = append(left, fmt.Sprintf("%d B of private memory", now.private-before.private))
	}
	slices.Sort(left)
	return left
}
