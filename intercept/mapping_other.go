//go:build !linux

package intercept

import "example.com/holdfast/hca"

func (k *kernel) mapping(uint64) (span, bool, error) { return span{}, false, hca.ErrNotSupported }
