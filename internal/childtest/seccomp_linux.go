package childtest

import (
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Forbid makes the given system calls (unix.SYS_...) fail with EPERM in every
// thread of this process, from now to its end: what a container's seccomp
// profile does, Docker's default one to io_uring_setup and userfaultfd for
// instance. It cannot be undone, so it belongs into the body of Run.
func Forbid(t *testing.T, nrs ...uintptr) {
	t.Helper()
	if !InChild() {
		t.Fatal("childtest: Forbid outside the body of Run would change the whole test process")
	}
	if len(nrs) == 0 || len(nrs) > 64 {
		t.Fatalf("childtest: Forbid takes 1 to 64 system calls, not %d", len(nrs))
	}
	// The program: load the number (offset 0 of struct seccomp_data), compare
	// it with each one forbidden and jump to the last instruction if equal. The
	// architecture is not looked at: a Go process makes native calls only.
	prog := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}}
	for i, nr := range nrs {
		prog = append(prog, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K,
			Jt: uint8(len(nrs) - i), K: uint32(nr)})
	}
	prog = append(prog,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}

	// Both calls must come from one thread; TSYNC carries the filter and the
	// no_new_privs bit over to all others.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatalf("childtest: prctl(PR_SET_NO_NEW_PRIVS): %v", err)
	}
	r, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(prog)
	if errno != 0 || r != 0 {
		t.Fatalf("childtest: seccomp(SET_MODE_FILTER, TSYNC) = %d: %v", r, errno)
	}
}
