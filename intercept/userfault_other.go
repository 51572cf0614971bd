//go:build !(linux && cgo && (amd64 || arm64 || riscv64 || loong64))

package intercept

import (
	"runtime"

	"example.com/holdfast/hca"
)

// UserfaultConfig makes a monitor on userfaultfd. This build has none: it
// answers hca.ErrNotSupported and says what would be needed.
func UserfaultConfig(cfg Config) (*Monitor, error) {
	if err := cfg.withDefaults().validate(); err != nil {
		return nil, err
	}
	e := &hca.OpError{Op: "start userfaultfd monitor", Err: hca.ErrNotSupported,
		Detail: "this is " + runtime.GOOS + "/" + runtime.GOARCH, Hint: "needs Linux on amd64, arm64, riscv64 or loong64; use explicit calls"}
	if runtime.GOOS == "linux" {
		e.Detail = "this program was built without cgo"
		e.Hint = "the event reader is a C thread: build with CGO_ENABLED=1 and gcc, or use explicit calls"
	}
	return nil, e
}

func (k *kernel) stop() {}

func (m *Monitor) tryDescriptor(int) error { return hca.ErrNotSupported }
