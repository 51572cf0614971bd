package eventtest

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/internal/leaktest"
)

// How memory is mapped.
const (
	RW      = unix.PROT_READ | unix.PROT_WRITE
	Private = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	Shared  = unix.MAP_SHARED | unix.MAP_ANONYMOUS
)

// PageSize is the kernel's.
var PageSize = uint64(unix.Getpagesize())

// Pointer makes a pointer of an address that the Go runtime does not know.
func Pointer(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// Bytes is the memory in r.
func Bytes(r hca.Range) []byte { return unsafe.Slice((*byte)(Pointer(r.Addr)), r.Len) }

// Poke writes a byte.
func Poke(addr uint64, b byte) { *(*byte)(Pointer(addr)) = b }

// Peek reads a byte.
func Peek(addr uint64) byte { return *(*byte)(Pointer(addr)) }

// Mmap is mmap(2). Where the kernel chooses the place it counts as the test's:
// see leaktest.Area.
func Mmap(t testing.TB, at, length uint64, prot, flags, fd int) uint64 {
	t.Helper()
	p, err := unix.MmapPtr(fd, 0, Pointer(at), uintptr(length), prot, flags)
	require.NoError(t, err)
	if flags&unix.MAP_FIXED == 0 {
		leaktest.Area(t, uint64(uintptr(p)), length)
	}
	return uint64(uintptr(p))
}

// Munmap is munmap(2).
func Munmap(t testing.TB, r hca.Range) {
	t.Helper()
	require.NoError(t, unix.MunmapPtr(Pointer(r.Addr), uintptr(r.Len)))
}

// Mremap is mremap(2).
func Mremap(t testing.TB, r hca.Range, length uint64, flags int, to uint64) uint64 {
	t.Helper()
	p, err := unix.MremapPtr(Pointer(r.Addr), uintptr(r.Len), Pointer(to), uintptr(length), flags)
	require.NoError(t, err)
	return uint64(uintptr(p))
}

// Area is address space that nobody else uses: memory is mapped inside it with
// MAP_FIXED, so that it has no neighbours and is where a test wants it. It
// starts on a page that is not aligned to anything larger: what a source rounds
// to huge pages stays small there.
func Area(t testing.TB, pages int) hca.Range {
	t.Helper()
	at := Mmap(t, 0, uint64(pages+3)*PageSize, unix.PROT_NONE, Shared|unix.MAP_NORESERVE, -1)
	at += PageSize
	if at&PageSize == 0 {
		at += PageSize
	}
	return hca.Range{Addr: at, Len: uint64(pages) * PageSize}
}

// Part is some pages of a range.
func Part(r hca.Range, first, pages int) hca.Range {
	return hca.Range{Addr: r.Addr + uint64(first)*PageSize, Len: uint64(pages) * PageSize}
}

// MapAt maps over r, writable, and writes 0xa5 to the first byte of every page.
func MapAt(t testing.TB, r hca.Range, flags, fd int) {
	t.Helper()
	require.Equal(t, r.Addr, Mmap(t, r.Addr, r.Len, RW, flags|unix.MAP_FIXED, fd))
	for p := r.Addr; p < r.End(); p += PageSize {
		Poke(p, 0xa5)
	}
}

// Memory gives n pages of fresh private memory without a neighbour on either
// side, written as by MapAt.
func Memory(t testing.TB, n int) hca.Range {
	t.Helper()
	r := Area(t, n)
	MapAt(t, r, Private, -1)
	return r
}

// NotMapped insists that why, what a source just said of r after it was unmapped, is
// hca.UnkeptNotMapped. If it is not, then another thread of the process, the runtime's
// perhaps, has mapped all of r since.
func NotMapped(t testing.TB, why hca.Unkept, r hca.Range) {
	t.Helper()
	if why == hca.UnkeptNotMapped {
		return
	}
	resident := make([]byte, r.Len/PageSize)
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(r.Addr), uintptr(r.Len), uintptr(unsafe.Pointer(&resident[0])))
	require.Zero(t, errno, "%v, but it is not mapped", why)
}

// Memfd gives a file in memory of n pages.
func Memfd(t testing.TB, n int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	require.NoError(t, unix.Ftruncate(fd, int64(n)*int64(PageSize)))
	return fd
}

// Shm attaches a new System V segment of two pages, which goes with its last
// user.
func Shm(t testing.TB) (id int, r hca.Range) {
	t.Helper()
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, int(2*PageSize), unix.IPC_CREAT|0o600)
	require.NoError(t, err)
	b, err := unix.SysvShmAttach(id, 0, 0)
	require.NoError(t, err)
	leaktest.Area(t, hca.RangeOf(b).Addr, 2*PageSize)
	_, err = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	require.NoError(t, err)
	return id, hca.RangeOf(b)
}
