//go:build !(linux && (amd64 || arm64 || riscv64 || loong64))

package uffd

import "example.com/holdfast/hca"

// Supported says that this system and processor have the calls at all.
const Supported = false

// Scanner stands in for the one of Linux. Its answers are errors.
type Scanner struct{}

// NewScanner makes a Scanner that knows nothing.
func NewScanner(int) *Scanner { return &Scanner{} }

// AllArmed answers ErrNotSupported.
func (*Scanner) AllArmed(_, _ uint64) (bool, error) { return false, hca.ErrNotSupported }

// AnyArmed answers ErrNotSupported.
func (*Scanner) AnyArmed(_, _ uint64) (bool, error) { return false, hca.ErrNotSupported }

// Open answers ErrNotSupported.
func Open(int) (int, error) { return -1, hca.ErrNotSupported }

// Enable answers ErrNotSupported.
func Enable(int, uint64) error { return hca.ErrNotSupported }

// Register answers ErrNotSupported.
func Register(int, uint64, uint64) error { return hca.ErrNotSupported }

// Unregister answers ErrNotSupported.
func Unregister(int, uint64, uint64) error { return hca.ErrNotSupported }

// Changing answers true: nothing can be proven.
func Changing(int) bool { return true }

// Mapping answers ErrNotSupported.
func Mapping(int, uint64) (start, end uint64, err error) { return 0, 0, hca.ErrNotSupported }

// Query answers ErrNotSupported.
func Query(int, uint64) (MappingInfo, error) { return MappingInfo{}, hca.ErrNotSupported }
