package pinbackend_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/hcasim"
	"example.com/holdfast/internal/childtest"
	"example.com/holdfast/pinbackend"
)

// On the live device registrations really pin, and what cannot be pinned is
// refused in the words of hca.
func TestLive(t *testing.T) {
	childtest.Run(t, 30*time.Second, nil, func(t *testing.T) {
		dev, err := hcasim.Open(hcasim.Live{})
		require.NoError(t, err)
		defer func() { require.NoError(t, dev.Close()) }()
		b := pinbackend.New(dev)
		require.Equal(t, dev.Attr().MaxMR, b.Info().MaxRegions)

		m, err := unix.Mmap(-1, 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		require.NoError(t, err)
		mr, err := b.Register(hca.RangeOf(m[5000:9000]), hca.LocalWrite|hca.RemoteRead)
		require.NoError(t, err)
		require.Equal(t, hca.RangeOf(m[5000:9000]), mr.Range)
		require.Equal(t, uint64(8<<10), dev.Counters().PinnedNow, "the two pages it lies in")
		require.NoError(t, b.Deregister(mr))
		require.Zero(t, dev.Counters().PinnedNow)
		require.ErrorIs(t, b.Deregister(mr), hca.ErrInvalid)

		require.NoError(t, unix.Munmap(m))
		// Not m, whose address somebody else may have by now: nothing is ever
		// mapped in the first pages.
		_, err = b.Register(hca.Range{Addr: 4096, Len: 4096}, hca.LocalWrite)
		require.ErrorIs(t, err, hca.ErrBadAddress)
		_, err = b.Register(hca.Whole, hca.LocalWrite)
		require.ErrorIs(t, err, hca.ErrInvalid)
	})
}
