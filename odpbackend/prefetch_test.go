package odpbackend_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/odpbackend"
)

func TestPrefetchStaysInsideTheRegistration(t *testing.T) {
	whole := func() (*recorder, odpbackend.Config) { return implicit(), odpbackend.Config{} }
	windows := func() (*recorder, odpbackend.Config) { return explicit(1 << 40), odpbackend.Config{Window: 1 << 20} }
	single := func() (*recorder, odpbackend.Config) {
		return explicit(1 << 40), odpbackend.Config{Mode: odpbackend.ModeRange}
	}
	for name, make := range map[string]func() (*recorder, odpbackend.Config){"whole": whole, "windows": windows, "range": single} {
		t.Run(name, func(t *testing.T) {
			dev, cfg := make()
			b := newBackend(t, dev, cfg)
			r := hca.Range{Addr: 0x10_0123, Len: 5000}
			require.ErrorIs(t, b.Prefetch(r, false), hca.ErrInvalid, "nothing is registered yet")
			require.Empty(t, dev.advised)

			mr, err := b.Register(r, hca.LocalWrite)
			require.NoError(t, err)
			part := hca.Range{Addr: r.End() - 1, Len: 1}
			require.NoError(t, b.Prefetch(r, false))
			require.NoError(t, b.PostPrefetch(nil, 7, part, true))
			require.Equal(t, []hca.SGE{
				{Addr: r.Addr, Len: r.Len, LKey: mr.LKey},
				{Addr: part.Addr, Len: part.Len, LKey: mr.LKey},
			}, dev.advised, "to the byte")
			require.Equal(t, []hca.Advice{hca.Prefetch, hca.PrefetchWrite}, dev.advices)

			outside := hca.Range{Addr: mr.Range.End() - 1, Len: 2}
			require.ErrorIs(t, b.Prefetch(outside, false), hca.ErrInvalid)
			require.ErrorIs(t, b.Prefetch(hca.Range{Addr: r.Addr}, false), hca.ErrInvalid)
			require.Len(t, dev.advised, 2)
			require.NoError(t, b.Deregister(mr))
			require.ErrorIs(t, b.Prefetch(r, false), hca.ErrInvalid)
		})
	}
}

func TestPrefetchOfALongBufferInWindows(t *testing.T) {
	dev := explicit(1 << 40)
	b := newBackend(t, dev, odpbackend.Config{Window: 1 << 20})
	long := hca.Range{Addr: 0x10_0000, Len: 3 << 20}
	mr, err := b.Register(long, hca.LocalWrite)
	require.NoError(t, err)
	require.NoError(t, b.Prefetch(long, false))
	require.NoError(t, b.Prefetch(hca.Range{Addr: long.Addr + 1<<20, Len: 1}, false), "a part of it that has no window")
	require.Equal(t, mr.LKey, dev.advised[1].LKey)
	require.NoError(t, b.Deregister(mr))
}

func TestPrefetchThatFailsChangesNothing(t *testing.T) {
	dev := implicit()
	b := newBackend(t, dev, odpbackend.Config{})
	r := hca.Range{Addr: 0x1000, Len: 1}
	mr, err := b.Register(r, hca.LocalRead)
	require.NoError(t, err)
	dev.adviseMR = func() error { return &hca.OpError{Op: "advise", Err: hca.ErrBadAddress} }
	require.ErrorIs(t, b.Prefetch(r, false), hca.ErrBadAddress)
	require.ErrorIs(t, b.PostPrefetch(nil, 1, r, false), hca.ErrBadAddress)
	dev.adviseMR = nil
	require.NoError(t, b.Prefetch(r, false))
	require.NoError(t, b.Deregister(mr))
	require.Empty(t, dev.ranges())
}

func TestARegistrationGivenBackDuringAPrefetchStaysUntilItsEnd(t *testing.T) {
	dev := explicit(1 << 40)
	b := newBackend(t, dev, odpbackend.Config{Mode: odpbackend.ModeRange})
	r := hca.Range{Addr: 0x1000, Len: 1}
	mr, err := b.Register(r, hca.LocalRead)
	require.NoError(t, err)
	dev.adviseMR = func() error {
		require.NoError(t, b.Deregister(mr))
		require.Len(t, dev.ranges(), 1, "the device may not lose it while it reads through it")
		return nil
	}
	require.NoError(t, b.Prefetch(r, false))
	require.Empty(t, dev.ranges(), "and drops it at the end")
}
