package hcatest

import (
	"testing"
	"unsafe"

	"example.com/holdfast/hca"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Map maps n bytes of private anonymous memory with 4 KiB pages, readable and
// writable, until the end of the test.
func Map(t testing.TB, n int) []byte {
	t.Helper()
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	_ = unix.Madvise(m, unix.MADV_NOHUGEPAGE) // EINVAL on a kernel without huge pages
	t.Cleanup(func() { _ = unix.Munmap(m) })  // EINVAL if the test unmapped it
	return m
}

// Hole maps n bytes and takes those in [from, to), whole pages, away again.
// Touching them kills the process: only their addresses may be used.
func Hole(t testing.TB, n, from, to int) []byte {
	t.Helper()
	m := Map(t, n)
	r := hca.RangeOf(m[from:to])
	_, _, errno := unix.Syscall(unix.SYS_MUNMAP, uintptr(r.Addr), uintptr(r.Len), 0)
	require.Zero(t, errno)
	return m
}

// ReadOnly maps n bytes that can be read only.
func ReadOnly(t testing.TB, n int) []byte {
	t.Helper()
	m := Map(t, n)
	require.NoError(t, unix.Mprotect(m, unix.PROT_READ))
	return m
}

// Remap puts fresh zero pages in the place of m, as munmap and mmap at the
// same address do, in one step.
func Remap(t testing.TB, m []byte) {
	t.Helper()
	r := hca.RangeOf(m)
	got, _, errno := unix.Syscall6(unix.SYS_MMAP, uintptr(r.Addr), uintptr(r.Len), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED, ^uintptr(0), 0)
	require.Zero(t, errno)
	require.EqualValues(t, r.Addr, got)
}

// mincore says which pages of m are in memory.
func mincore(m, vec []byte) error {
	r := hca.RangeOf(m)
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(r.Addr), uintptr(r.Len), uintptr(unsafe.Pointer(&vec[0])))
	if errno != 0 {
		return errno
	}
	return nil
}
