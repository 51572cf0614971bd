//go:build !linux

package hcasim

import "example.com/holdfast/hca"

func newHost(FabricConfig) (host, error) {
	return nil, &hca.OpError{Op: "open fabric", Err: hca.ErrNotSupported, Hint: "the live form needs Linux"}
}
