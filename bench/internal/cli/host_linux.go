package cli

import "golang.org/x/sys/unix"

// host names the machine, the system, its release and its version, as uname
// does.
func host() (machine, system, release, version string) {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown", "unknown", "unknown", "unknown"
	}
	s := func(b []byte) string { return unix.ByteSliceToString(b) }
	return s(u.Machine[:]), s(u.Sysname[:]), s(u.Release[:]), s(u.Version[:])
}
