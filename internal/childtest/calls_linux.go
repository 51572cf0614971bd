package childtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Call is one system call: its number (unix.SYS_...) and its arguments.
type Call struct {
	Nr   uintptr
	Args [6]uint64
}

// String is for messages of failed tests.
func (c Call) String() string { return fmt.Sprintf("system call %d%#x", c.Nr, c.Args) }

// Calls finds out which system calls a piece of code makes. In a child process
// (see Run for limit and env) it calls body, and then what body returns, on a
// thread of its own whose every system call is noted. In this process it then
// calls check with what was noted, in order, also if that is nothing.
//
// How: the thread has a seccomp filter that no other has, which hands each of its
// calls to this process, and this process lets it pass. So what other threads do,
// the Go runtime's own among them, is not in the answer. What the runtime does on
// this thread would be, in two cases. It asks f to yield after 10 ms: so f begins
// with a fresh share of time, should take a millisecond at most when the machine is
// quiet (a call that is noted takes some 50 us), and a run of more than 5 does not
// count. And it may give f's processor to another goroutine while f is in a call
// that may block, after which the thread waits for one: so f is run until ten runs
// count, and those with the fewest calls are the answer. What f itself calls is in
// every run. One run goes before them, so that stacks have grown; the garbage
// collector is off.
func Calls(t *testing.T, limit time.Duration, env []string, body func(t *testing.T) (f func()), check func(t *testing.T, calls []Call)) {
	t.Helper()
	if os.Getenv(marker) == t.Name() {
		if err := perform(body(t)); err != nil {
			t.Fatalf("childtest: %v", err)
		}
		return
	}
	if fd, err := copyOf(os.Getpid(), func(string) bool { return true }); err != nil {
		t.Skipf("this machine does not let a process take a copy of another's descriptor: %v", err)
	} else {
		unix.Close(fd)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("childtest: socketpair: %v", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	n := &notary{done: make(chan struct{})}
	go n.serve(ours)
	out := func() string {
		defer theirs.Close() // then nobody has it, and who waits for a listener hears so
		return run(t, limit, env, []*os.File{theirs})
	}()
	<-n.done
	calls, ok := n.calls()
	switch {
	case n.err != nil:
		t.Fatalf("childtest: noting system calls: %v", n.err)
	case skipped(t, out):
		t.Skipf("the child skipped:\n%s", out)
	case !ok:
		t.Fatalf("childtest: what was to be noted was not run to its end; the child's output:\n%s", out)
	}
	t.Logf("child:\n%s", out)
	check(t, calls)
}

// What the thread says to the notary, as the first argument of a system call that
// changes nothing, getppid.
const (
	markBegin uint64 = iota + 1
	markEnd
	markCounts // the last from begin to end is one that counts
)

func mark(what uint64) { unix.RawSyscall(unix.SYS_GETPPID, uintptr(what), 0, 0) }

// perform is the child's part. From confine on, no other goroutine of the child
// is needed for the thread to go on: what it holds while it waits for the notary,
// a processor of the Go scheduler for instance, another might need.
func perform(f func()) error {
	debug.SetGCPercent(-1)
	const socket = 3 // the first of the extra files
	defer unix.Close(socket)
	if _, err := unix.Write(socket, binary.NativeEndian.AppendUint32(nil, uint32(os.Getpid()))); err != nil {
		return fmt.Errorf("call the notary: %w", err)
	}
	listener := -1
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for ever
		var err error
		if listener, err = confine(); err != nil {
			failed <- err
			return
		}
		f()
		count := 0
		for range 1000 {
			runtime.Gosched() // a fresh share of time
			began := time.Now()
			mark(markBegin)
			f()
			mark(markEnd)
			if time.Since(began) >= 5*time.Millisecond {
				continue
			}
			mark(markCounts)
			if count++; count == 10 {
				break
			}
		}
		if count == 0 {
			failed <- errors.New("what is noted did not run within 5 ms in 1000 times")
			return
		}
		failed <- nil
	}()
	err := <-failed
	if listener >= 0 {
		unix.Close(listener) // the notary has a copy
	}
	return err
}

// confine puts the filter on this thread. From its return on, each system call of
// the thread waits until the notary lets it pass.
func confine() (listener int, err error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, fmt.Errorf("prctl(PR_SET_NO_NEW_PRIVS): %w", err)
	}
	ask := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF}
	prog := unix.SockFprog{Len: 1, Filter: &ask}
	// Killable: a signal of the Go scheduler must not make the kernel begin a call
	// anew that has been noted.
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return -1, fmt.Errorf("seccomp(SET_MODE_FILTER, NEW_LISTENER): %w", errno)
	}
	return int(fd), nil
}

// notary is this process's part: it notes and lets pass.
type notary struct {
	all  []Call
	err  error
	done chan struct{} // closed at the end; the others are serve's until then
}

// calls are those of the shortest run that counts, and whether there is one.
func (n *notary) calls() (least []Call, ok bool) {
	begin, end := 0, 0
	for i, c := range n.all {
		if c.Nr != unix.SYS_GETPPID {
			continue
		}
		switch c.Args[0] {
		case markBegin:
			begin = i + 1
		case markEnd:
			end = i
		case markCounts:
			if run := n.all[begin:end]; !ok || len(run) < len(least) {
				least, ok = run, true
			}
		}
	}
	return least, ok
}

// The structs of linux/seccomp.h.
type (
	seccompNotif struct {
		id         uint64
		pid, flags uint32
		nr         int32
		arch       uint32
		ip         uint64
		args       [6]uint64
	}
	seccompResp struct {
		id           uint64
		val          int64
		error, flags int32
	}
)

// seccompContinue is SECCOMP_USER_NOTIF_FLAG_CONTINUE: let the call pass.
const seccompContinue = 1

// serve waits for the child to come to the point, and then works the listener of
// its filter until the thread has ended.
func (n *notary) serve(socket *os.File) {
	defer close(n.done)
	defer socket.Close()
	from := make([]byte, 4)
	if _, err := io.ReadFull(socket, from); err != nil {
		return // the child did not come to it, and says why
	}
	listener, err := listenerOf(int(binary.NativeEndian.Uint32(from)))
	if err != nil {
		n.err = err
		return
	}
	if listener < 0 {
		return // the child could not make one, and says why
	}
	defer unix.Close(listener)
	for {
		p := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, -1); err == unix.EINTR {
			continue
		}
		if p[0].Revents&unix.POLLIN == 0 {
			return // the thread has ended
		}
		var got seccompNotif
		if control(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&got)) != 0 {
			continue // the call was given up before it could be noted
		}
		n.all = append(n.all, Call{Nr: uintptr(got.nr), Args: got.args})
		pass := seccompResp{id: got.id, flags: seccompContinue}
		if errno := control(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&pass)); errno != 0 && errno != unix.ENOENT {
			n.err = fmt.Errorf("a call that was noted could not be let pass: %w", errno)
		}
	}
}

// listenerOf takes a copy of the child's listener, as soon as it has one. -1 if the
// child has ended without.
func listenerOf(pid int) (int, error) {
	for {
		fd, err := copyOf(pid, func(what string) bool { return what == "anon_inode:seccomp notify" })
		if errors.Is(err, errNoSuch) {
			runtime.Gosched() // nothing tells when it is there
			continue
		}
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return -1, nil
		}
		return fd, err
	}
}

var errNoSuch = errors.New("no such descriptor")

// copyOf takes a copy of a process's first descriptor of which is says yes, given
// what it links to in /proc.
func copyOf(pid int, is func(what string) bool) (int, error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, fmt.Errorf("pidfd_open: %w", err)
	}
	defer unix.Close(pidfd)
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	all, err := os.ReadDir(dir)
	if err != nil || len(all) == 0 {
		return -1, fmt.Errorf("%s: %w", dir, os.ErrNotExist)
	}
	for _, e := range all {
		what, err := os.Readlink(dir + e.Name())
		if err != nil || !is(what) {
			continue
		}
		number, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		fd, err := unix.PidfdGetfd(pidfd, number, 0)
		if err != nil {
			return -1, fmt.Errorf("pidfd_getfd: %w", err)
		}
		return fd, nil
	}
	return -1, errNoSuch
}

func control(fd int, request uintptr, arg unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	return errno
}
