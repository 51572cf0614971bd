package rig

import "golang.org/x/sys/unix"

// memlock is how many bytes the processes of this user may pin together, and
// whether there is such a limit: not for a process with CAP_IPC_LOCK.
func memlock() (limit uint64, limited bool) {
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim) != nil || lim.Cur == unix.RLIM_INFINITY {
		return 0, false
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&hdr, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0 {
		return 0, false
	}
	return lim.Cur, true
}
