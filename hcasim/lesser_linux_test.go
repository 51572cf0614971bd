package hcasim

import (
	"testing"
	"time"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
	"example.com/holdfast/internal/childtest"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// What Docker's default profile does: the device runs all the same, passes the
// suite, and says aloud that it is a lesser one and what to allow.
func TestForbidden(t *testing.T) {
	childtest.Run(t, 60*time.Second, nil, func(t *testing.T) {
		childtest.Forbid(t, unix.SYS_IO_URING_SETUP, unix.SYS_USERFAULTFD)
		a, _ := pair(t, FabricConfig{})
		require.True(t, a.Attr().Lesser)
		require.False(t, a.Attr().StalePins)
		require.Contains(t, a.Attr().Form, "lesser form")
		require.Contains(t, a.Attr().Form, "io_uring_setup is forbidden")
		require.Contains(t, a.Attr().Form, "--security-opt seccomp=")
		hcatest.Run(t, func(t *testing.T) (hca.Device, hca.Device) {
			a, b := pair(t, FabricConfig{})
			return a, b
		})
	})
}

func TestAllForbidden(t *testing.T) {
	childtest.Run(t, 30*time.Second, nil, func(t *testing.T) {
		childtest.Forbid(t, unix.SYS_IO_URING_SETUP, unix.SYS_PROCESS_VM_READV)
		_, err := NewFabric(FabricConfig{})
		require.ErrorIs(t, err, hca.ErrNotSupported)
		require.ErrorContains(t, err, "io_uring_setup is forbidden")
		require.ErrorContains(t, err, "process_vm_readv")
	})
}

// mlock does not nest; registrations do.
func TestLocksAreCounted(t *testing.T) {
	childtest.Run(t, 30*time.Second, nil, func(t *testing.T) {
		a, _ := pair(t, FabricConfig{Lesser: true})
		m := hcatest.Map(t, 8*page)
		all := hcatest.Register(t, a, m, hca.LocalWrite)
		mid := hcatest.Register(t, a, m[2*page+1:4*page], hca.LocalWrite)
		require.EqualValues(t, 8*page, status(t).VmLck)
		require.NoError(t, a.Deregister(all))
		require.EqualValues(t, 2*page, status(t).VmLck)
		require.NoError(t, a.Deregister(mid))
		require.Zero(t, status(t).VmLck)

		// What cannot be had leaves nothing locked: the second page of this
		// mapping lies behind the end of its file.
		fd, err := unix.MemfdCreate("short", unix.MFD_CLOEXEC)
		require.NoError(t, err)
		require.NoError(t, unix.Ftruncate(fd, page))
		short, err := unix.Mmap(fd, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		require.NoError(t, err)
		_, err = a.Register(hca.RangeOf(short), hca.LocalWrite)
		require.ErrorIs(t, err, hca.ErrBadAddress)
		require.Zero(t, status(t).VmLck)
		require.NoError(t, unix.Munmap(short))
		require.NoError(t, unix.Close(fd))

		// Memory that went away under its registration is no obstacle.
		gone := hcatest.Map(t, page)
		mr := hcatest.Register(t, a, gone, hca.LocalWrite)
		require.NoError(t, unix.Munmap(gone))
		require.NoError(t, a.Deregister(mr))
		require.Zero(t, status(t).VmLck)
	})
}

// An ordinary user gets the full form.
func TestUnprivileged(t *testing.T) {
	childtest.Run(t, 60*time.Second, nil, func(t *testing.T) {
		childtest.DropPrivileges(t, 54012, 8<<20) // what systemd gives by default
		full(t)
		hcatest.Run(t, func(t *testing.T) (hca.Device, hca.Device) {
			a, b := full(t)
			return a, b
		})
	})
}
