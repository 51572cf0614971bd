package verbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

func TestConfig(t *testing.T) {
	bad, far := -1, 256
	for field, cfg := range map[string]Config{
		"Config.Port":     {Port: 256},
		"Config.GIDIndex": {GIDIndex: &bad},
		"Config.Workers":  {Workers: 65},
	} {
		d, err := Open(cfg)
		require.ErrorIs(t, err, hca.ErrInvalid)
		require.ErrorContains(t, err, field)
		require.Nil(t, d)
	}
	_, err := Open(Config{GIDIndex: &far})
	require.ErrorIs(t, err, hca.ErrInvalid)
	require.NoError(t, (&Config{}).validate())
}

// Where an adapter cannot be had, in any build, the answer is one clear kind
// of error and a nil interface.
func TestNoSuchAdapter(t *testing.T) {
	d, err := Open(Config{Name: "no-such-adapter"})
	require.ErrorIs(t, err, hca.ErrNotSupported)
	require.True(t, d == nil)
	var dev hca.Device = d
	require.True(t, dev == nil)
}
