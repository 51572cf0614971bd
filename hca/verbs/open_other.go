//go:build !(linux && cgo && verbs)

package verbs

import "example.com/holdfast/hca"

func absent(op string) error {
	return &hca.OpError{Op: op, Detail: "this program was built without libibverbs", Err: hca.ErrNotSupported,
		Hint: "build on Linux with cgo, -tags verbs and Debian's libibverbs-dev or its like"}
}

// Open opens an adapter. In this build it always answers hca.ErrNotSupported.
func Open(cfg Config) (Adapter, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return nil, absent("open")
}

// List names the adapters. In this build it always answers
// hca.ErrNotSupported.
func List() ([]string, error) { return nil, absent("list adapters") }
