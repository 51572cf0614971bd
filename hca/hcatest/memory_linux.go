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

// Hole maps n bytes without those in [from, to), whole pages, until the end of
// the test. Touching the hole kills the process: only its addresses may be
// used. The mapping lies in the middle of the address space, far below where
// the kernel puts what others map, so that nobody is given the hole.
func Hole(t testing.TB, n, from, to int) []byte {
	t.Helper()
	middle := uintptr(hca.RangeOf(Map(t, page)).Addr) / 2 &^ (1<<21 - 1)
	var addr unsafe.Pointer
	for i := uintptr(0); ; i++ {
		var err error
		addr, err = unix.MmapPtr(-1, 0, pointer(middle+i<<30), uintptr(n), unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
		if err == nil {
			break
		}
		require.ErrorIs(t, err, unix.EEXIST)
		require.Less(t, i, uintptr(100), "no room in the middle of the address space")
	}
	m := unsafe.Slice((*byte)(addr), n)
	unmap := func(from, to int) {
		require.NoError(t, unix.MunmapPtr(unsafe.Add(addr, from), uintptr(to-from)))
	}
	unmap(from, to)
	t.Cleanup(func() { // not the hole, which may be somebody's by now
		if from > 0 {
			unmap(0, from)
		}
		if to < n {
			unmap(to, n)
		}
	})
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

// pointer makes an address that belongs to no Go object a pointer.
func pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }
