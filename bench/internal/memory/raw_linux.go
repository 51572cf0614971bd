package memory

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	readWrite = unix.PROT_READ | unix.PROT_WRITE
	anonymous = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
)

// Raw maps with plain system calls that nobody is told of.
type Raw struct{}

var _ Mapper = Raw{}

// Map is mmap.
func (Raw) Map(n int) ([]byte, error) { return raw(nil, n, readWrite, 0) }

// MapOver is mmap with MAP_FIXED.
func (Raw) MapOver(b []byte) error { return rawAt(b, readWrite, unix.MAP_FIXED) }

// MapAt is mmap with MAP_FIXED_NOREPLACE.
func (Raw) MapAt(b []byte) error { return rawAt(b, readWrite, unix.MAP_FIXED_NOREPLACE) }

// Reserve is mmap with MAP_FIXED and PROT_NONE.
func (Raw) Reserve(b []byte) error { return rawAt(b, unix.PROT_NONE, unix.MAP_FIXED) }

// Unmap is munmap.
func (Raw) Unmap(b []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
}

func rawAt(b []byte, prot, flags int) error {
	_, err := raw(b, len(b), prot, flags)
	return err
}

func raw(at []byte, n, prot, flags int) ([]byte, error) {
	p, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(at)), uintptr(n), prot, anonymous|flags)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), n), nil
}
