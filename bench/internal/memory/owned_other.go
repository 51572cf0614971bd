//go:build !linux

package memory

import (
	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
)

// Owned answers hca.ErrNotSupported: the benchmarks run on Linux.
type Owned struct{ Monitor *intercept.Monitor }

var _ Mapper = Owned{}

// Map is not supported here.
func (Owned) Map(int) ([]byte, error) { return nil, hca.ErrNotSupported }

// MapOver is not supported here.
func (Owned) MapOver([]byte) error { return hca.ErrNotSupported }

// MapAt is not supported here.
func (Owned) MapAt([]byte) error { return hca.ErrNotSupported }

// Reserve is not supported here.
func (Owned) Reserve([]byte) error { return hca.ErrNotSupported }

// Unmap is not supported here.
func (Owned) Unmap([]byte) error { return hca.ErrNotSupported }
