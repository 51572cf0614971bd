//go:build !linux

package intercept

import (
	"unsafe"

	"example.com/holdfast/hca"
)

// Where the package does not map memory itself, a host that does announces
// with Begin and End, and says what is its own with Adopt.

func noCalls(op string) error {
	return &hca.OpError{Op: op, Err: hca.ErrNotSupported, Hint: "map by the system's own means, and use Adopt, Begin and End"}
}

// Map answers hca.ErrNotSupported on this system.
func (m *Monitor) Map(r hca.Range, prot, flags, fd int, offset int64) (hca.Range, error) {
	return hca.Range{}, noCalls("mmap")
}

// Unmap answers hca.ErrNotSupported on this system.
func (m *Monitor) Unmap(r hca.Range) error { return noCalls("munmap") }

// Remap answers hca.ErrNotSupported on this system.
func (m *Monitor) Remap(r hca.Range, length uint64, flags int, dst uint64) (hca.Range, error) {
	return hca.Range{}, noCalls("mremap")
}

// Advise answers hca.ErrNotSupported on this system.
func (m *Monitor) Advise(r hca.Range, advice int) error { return noCalls("madvise") }

// Mmap answers hca.ErrNotSupported on this system.
func (m *Monitor) Mmap(fd int, offset int64, length, prot, flags int) ([]byte, error) {
	return nil, noCalls("mmap")
}

// Munmap answers hca.ErrNotSupported on this system.
func (m *Monitor) Munmap(b []byte) error { return noCalls("munmap") }

// Mremap answers hca.ErrNotSupported on this system.
func (m *Monitor) Mremap(b []byte, length, flags int) ([]byte, error) { return nil, noCalls("mremap") }

// Madvise answers hca.ErrNotSupported on this system.
func (m *Monitor) Madvise(b []byte, advice int) error { return noCalls("madvise") }

// exerciseOwned announces the end of a block of Go memory as a host would.
func (m *Monitor) exerciseOwned() (hca.Range, error) {
	block := make([]byte, 2*pageSize)
	at := uint64(uintptr(unsafe.Pointer(&block[0])))
	r := hca.Range{Addr: (at + pageSize - 1) &^ (pageSize - 1), Len: pageSize}
	if err := m.Adopt(r); err != nil {
		return r, err
	}
	m.Begin(r, hca.CauseUnmap).End()
	return r, nil
}

func (m *Monitor) exerciseForeign() (hca.Range, error) {
	return hca.Range{}, errNotWatched
}
