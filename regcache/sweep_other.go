//go:build !linux

package regcache

import "example.com/holdfast/hca"

func mappings() ([]hca.Range, error) { return nil, hca.ErrNotSupported }
