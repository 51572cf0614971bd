package memory

import (
	"errors"
	"io/fs"
	"unsafe"

	"example.com/holdfast/hca"
)

// far is where FarPlace begins to look: in the middle of the address space
// that Linux gives a 64-bit process, where the kernel by itself puts nothing
// as long as there is room elsewhere, and where the race detector has none of
// its tables. farStep is how far apart the tries are.
const (
	far     = 1 << 46
	farStep = 1 << 30
	farMost = 64
)

// FarPlace finds n bytes of address space in which nothing is mapped and in
// which nothing will be mapped but on purpose: memory that is unmapped there
// does not go to whoever asks the kernel for memory next. The slice is only an
// address until MapAt: it must not be read or written.
func FarPlace(m Mapper, n int) ([]byte, error) {
	for try := range farMost {
		b := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(nil), uintptr(far+try*farStep))), n)
		err := m.MapAt(b)
		if err == nil {
			return b, m.Unmap(b)
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	return nil, &hca.OpError{Op: "find free address space", Detail: "all places tried are taken", Err: hca.ErrNoMemory}
}
