package cli

import (
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

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

// available is how many bytes of memory new work can have, as /proc/meminfo
// says; 0 if that is not known.
func available() uint64 {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0
	}
	m, err := fs.Meminfo()
	if err != nil || m.MemAvailableBytes == nil {
		return 0
	}
	return *m.MemAvailableBytes
}

// load is how many threads wanted to run on average in the last minute; 0 if
// that is not known.
func load() float64 {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0
	}
	l, err := fs.LoadAvg()
	if err != nil {
		return 0
	}
	return l.Load1
}

// executable is this program. Not by its path: another user may not be let
// into its directory, and another version may lie there by now.
func executable() (string, error) { return "/proc/self/exe", nil }
