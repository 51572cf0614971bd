//go:build linux && cgo && verbs

package verbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
)

// open opens the first adapter until the end of the test. Where there is none
// the tests skip: .ci/softroce brings up a machine that has one, and names it
// in the environment, so that nothing skips there.
func open(t testing.TB) *device {
	t.Helper()
	d, err := Open(Config{Name: adapter(t)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d.(*device)
}

func TestSuite(t *testing.T) {
	hcatest.Run(t, func(t *testing.T) (a, b hca.Device) { return open(t), open(t) })
}
