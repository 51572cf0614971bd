//go:build !linux

package memory

import "example.com/holdfast/hca"

// Raw answers hca.ErrNotSupported: the benchmarks run on Linux.
type Raw struct{}

var _ Mapper = Raw{}

// Map is not supported here.
func (Raw) Map(int) ([]byte, error) { return nil, hca.ErrNotSupported }

// MapOver is not supported here.
func (Raw) MapOver([]byte) error { return hca.ErrNotSupported }

// MapAt is not supported here.
func (Raw) MapAt([]byte) error { return hca.ErrNotSupported }

// Reserve is not supported here.
func (Raw) Reserve([]byte) error { return hca.ErrNotSupported }

// Unmap is not supported here.
func (Raw) Unmap([]byte) error { return hca.ErrNotSupported }
