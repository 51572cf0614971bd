//go:build !(linux && cgo && (amd64 || arm64 || riscv64 || loong64))

package reader

import "example.com/holdfast/hca"

// Available says that this build has the thread.
const Available = false

// Reader stands in for the thread where there is none.
type Reader struct{}

// Start answers ErrNotSupported.
func Start(Shared, []int, int, int) (*Reader, error) { return nil, hca.ErrNotSupported }

// Stop does nothing.
func (*Reader) Stop() {}
