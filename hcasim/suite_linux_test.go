package hcasim

import (
	"testing"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
	"github.com/stretchr/testify/require"
)

// pair opens two devices on a fabric of their own, until the end of the test.
func pair(t testing.TB, cfg FabricConfig) (*Device, *Device) {
	t.Helper()
	f, err := NewFabric(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	var d [2]*Device
	for i := range d {
		d[i], err = Open(Live{Fabric: f})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d[i].Close()) })
	}
	return d[0], d[1]
}

// full is pair where the full form is what the test is about.
func full(t testing.TB) (*Device, *Device) {
	t.Helper()
	a, b := pair(t, FabricConfig{})
	if a.Attr().Lesser {
		t.Skip("needs io_uring: " + a.Attr().Form)
	}
	return a, b
}

func TestSuite(t *testing.T) {
	for name, cfg := range map[string]FabricConfig{"full": {}, "lesser": {Lesser: true}} {
		t.Run(name, func(t *testing.T) {
			hcatest.Run(t, func(t *testing.T) (hca.Device, hca.Device) {
				if name == "full" {
					a, b := full(t)
					return a, b
				}
				a, b := pair(t, cfg)
				return a, b
			})
		})
	}
}
