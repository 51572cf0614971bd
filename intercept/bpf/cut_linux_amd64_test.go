package bpf

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// oldWaysToCut are by calls that newer processors do not have.
func oldWaysToCut(t *testing.T, name string) []wayToCut {
	path, err := unix.BytePtrFromString(name)
	require.NoError(t, err)
	closed := func(fd uintptr, errno unix.Errno) error {
		if errno != 0 {
			return errno
		}
		return unix.Close(int(fd))
	}
	return []wayToCut{
		{"open", func() error {
			fd, _, errno := unix.Syscall(unix.SYS_OPEN, uintptr(unsafe.Pointer(path)), unix.O_RDWR|unix.O_TRUNC|unix.O_CLOEXEC, 0)
			return closed(fd, errno)
		}},
		{"creat", func() error {
			fd, _, errno := unix.Syscall(unix.SYS_CREAT, uintptr(unsafe.Pointer(path)), 0o600, 0)
			return closed(fd, errno)
		}},
	}
}
