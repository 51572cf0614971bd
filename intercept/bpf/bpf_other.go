//go:build !(linux && (amd64 || arm64))

package bpf

import (
	"runtime"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
)

// New makes a monitor on programs in the kernel. There are none on this
// system: it answers hca.ErrNotSupported.
func New(cfg Config) (*intercept.Monitor, error) {
	if err := cfg.withDefaults().validate(); err != nil {
		return nil, err
	}
	return nil, startError("this is "+runtime.GOOS+"/"+runtime.GOARCH, hca.ErrNotSupported, "needs Linux on amd64 or arm64; use intercept.Auto")
}
