package memory

// Mapper maps and unmaps private anonymous memory that can be read and
// written. It may be used by several goroutines at once. Lengths are whole
// pages.
type Mapper interface {
	// Map maps n bytes where the kernel likes.
	Map(n int) ([]byte, error)
	// MapOver maps new memory exactly over b, whose own memory is gone then.
	MapOver(b []byte) error
	// MapAt maps new memory exactly where b is or was, if nothing is mapped
	// there; errors.Is(err, fs.ErrExist) if something is.
	MapAt(b []byte) error
	// Reserve takes the memory of b away but keeps its address: nobody else
	// gets it from the kernel until MapOver.
	Reserve(b []byte) error
	// Unmap takes the memory of b away, address and all.
	Unmap(b []byte) error
}

// PageSize is the granularity of mappings in bytes.
const PageSize = 4096

// Pages is n rounded up to whole pages, at least one.
func Pages(n int) int { return (max(n, 1) + PageSize - 1) &^ (PageSize - 1) }
