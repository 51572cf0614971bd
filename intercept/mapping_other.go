//go:build !linux

package intercept

import (
	"example.com/holdfast/hca"
	"example.com/holdfast/intercept/internal/uffd"
)

func (k *kernel) mapping(uint64) (uffd.MappingInfo, bool, error) {
	return uffd.MappingInfo{}, false, hca.ErrNotSupported
}
