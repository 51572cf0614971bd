//go:build !(linux && cgo && (amd64 || arm64 || riscv64 || loong64))

package intercept

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// Without the kernel source it is refused with a reason, and Auto says why it
// took the lesser one.
func TestNoUserfault(t *testing.T) {
	m, err := Userfault()
	require.Nil(t, m)
	require.ErrorIs(t, err, hca.ErrNotSupported)
	require.ErrorContains(t, err, "explicit calls")
	m, err = Auto()
	require.NoError(t, err)
	require.ErrorIs(t, m.Lesser(), hca.ErrNotSupported)
	require.Contains(t, m.String(), "no better because")
	require.NoError(t, m.Close())
}
