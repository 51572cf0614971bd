//go:build linux && cgo && verbs

package verbs

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// adapter is the adapter that the tests use: the one that HOLDFAST_ADAPTER
// names, which must then be there, or the first one.
func adapter(t testing.TB) string {
	t.Helper()
	name := os.Getenv("HOLDFAST_ADAPTER")
	names, err := List()
	if name == "" && (err != nil || len(names) == 0) {
		t.Skipf("needs an RDMA adapter, and this machine has none (%v); .ci/softroce runs a machine with one", err)
	}
	require.NoError(t, err)
	if name == "" {
		return names[0]
	}
	require.Contains(t, names, name)
	return name
}
