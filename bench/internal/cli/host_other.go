//go:build !linux

package cli

import (
	"os"
	"runtime"
)

// host names the machine and the system.
func host() (machine, system, release, version string) {
	return runtime.GOARCH, runtime.GOOS, "unknown", "unknown"
}

// available is not known here.
func available() uint64 { return 0 }

// load is not known here.
func load() float64 { return 0 }

// executable is this program.
func executable() (string, error) { return os.Executable() }
