package childtest

import (
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// DropPrivileges makes this process an ordinary one of the given user, with
// the given limit of locked memory in bytes: every capability, CAP_IPC_LOCK
// among them, is gone from every thread. It cannot be undone, so it belongs
// into the body of Run. It skips the test where the process is not root and
// therefore cannot change its user.
//
// The kernel charges locked memory to the user and not to the process: each
// test should take a uid of its own that nobody else has.
func DropPrivileges(t *testing.T, uid int, memlock uint64) {
	t.Helper()
	if !InChild() {
		t.Fatal("childtest: DropPrivileges outside the body of Run would change the whole test process")
	}
	if unix.Geteuid() != 0 {
		t.Skip("needs root, to become a user of its own with its own account of locked memory")
	}
	lim := unix.Rlimit{Cur: memlock, Max: memlock}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &lim); err != nil {
		t.Fatalf("childtest: setrlimit(RLIMIT_MEMLOCK, %d): %v", memlock, err)
	}
	if err := syscall.Setgroups(nil); err != nil {
		t.Fatalf("childtest: setgroups: %v", err)
	}
	if err := syscall.Setgid(uid); err != nil {
		t.Fatalf("childtest: setgid(%d): %v", uid, err)
	}
	if err := syscall.Setuid(uid); err != nil {
		t.Fatalf("childtest: setuid(%d): %v", uid, err)
	}
	// A process that changed its user may not look into its own /proc files
	// any more until it says that it has nothing to hide.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		t.Fatalf("childtest: prctl(PR_SET_DUMPABLE): %v", err)
	}
}
