package memory

import (
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
)

// Owned maps through a monitor, which so hears of the end of the memory before
// it comes. It is for machines on which no other source of events works.
type Owned struct{ Monitor *intercept.Monitor }

var _ Mapper = Owned{}

// Map is mmap.
func (o Owned) Map(n int) ([]byte, error) { return o.Monitor.Mmap(-1, 0, n, readWrite, anonymous) }

// MapOver is mmap with MAP_FIXED.
func (o Owned) MapOver(b []byte) error { return o.at(b, readWrite, unix.MAP_FIXED) }

// MapAt is mmap with MAP_FIXED_NOREPLACE.
func (o Owned) MapAt(b []byte) error { return o.at(b, readWrite, unix.MAP_FIXED_NOREPLACE) }

// Reserve is mmap with MAP_FIXED and PROT_NONE.
func (o Owned) Reserve(b []byte) error { return o.at(b, unix.PROT_NONE, unix.MAP_FIXED) }

// Unmap is munmap.
func (o Owned) Unmap(b []byte) error { return o.Monitor.Munmap(b) }

func (o Owned) at(b []byte, prot, flags int) error {
	_, err := o.Monitor.Map(hca.RangeOf(b), prot, anonymous|flags, -1, 0)
	return err
}
