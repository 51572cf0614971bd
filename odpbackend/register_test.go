package odpbackend_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/odpbackend"
)

func newBackend(t *testing.T, dev *recorder, cfg odpbackend.Config) *odpbackend.Backend {
	t.Helper()
	b, err := odpbackend.New(dev, cfg)
	require.NoError(t, err)
	dev.made = 0
	return b
}

func TestWholeIsRegisteredOnceAndDroppedAtTheLast(t *testing.T) {
	dev := implicit()
	b := newBackend(t, dev, odpbackend.Config{})
	first, err := b.Register(hca.Range{Addr: 0x1000, Len: 10}, hca.LocalRead)
	require.NoError(t, err)
	second, err := b.Register(hca.Range{Addr: 1 << 46, Len: 1 << 33}, hca.LocalWrite|hca.RemoteAtomic)
	require.NoError(t, err)
	require.Same(t, first, second)
	require.Equal(t, hca.Whole, first.Range)
	require.Equal(t, 1, dev.made)

	require.NoError(t, b.Deregister(first))
	require.Len(t, dev.ranges(), 1, "one user is left")
	require.NoError(t, b.Deregister(second))
	require.Empty(t, dev.ranges())
	require.ErrorIs(t, b.Deregister(second), hca.ErrInvalid, "once too often")

	again, err := b.Register(hca.Range{Addr: 0x1000, Len: 10}, hca.LocalRead)
	require.NoError(t, err)
	require.NotSame(t, first, again)
	require.NoError(t, b.Deregister(again))
}

func TestWindowsAreShared(t *testing.T) {
	dev := explicit(1 << 40)
	b := newBackend(t, dev, odpbackend.Config{Window: 2 << 20})
	const half = 1 << 20
	inFirst, err := b.Register(hca.Range{Addr: 8 * half, Len: half}, hca.LocalRead)
	require.NoError(t, err)
	alsoFirst, err := b.Register(hca.Range{Addr: 8*half + half/2, Len: half}, hca.LocalWrite)
	require.NoError(t, err)
	require.Same(t, inFirst, alsoFirst)
	next, err := b.Register(hca.Range{Addr: 9 * half, Len: half}, hca.LocalRead)
	require.NoError(t, err)
	long, err := b.Register(hca.Range{Addr: 8*half + 1, Len: 2 * half}, hca.LocalRead)
	require.NoError(t, err)
	require.Equal(t, []hca.Range{
		{Addr: 8 * half, Len: 2 * half},
		{Addr: 8*half + 1, Len: 2 * half},
		{Addr: 9 * half, Len: 2 * half},
	}, dev.ranges())
	for _, mr := range []*hca.MR{inFirst, long, next} {
		require.NoError(t, b.Deregister(mr))
	}
	require.Equal(t, []hca.Range{{Addr: 8 * half, Len: 2 * half}}, dev.ranges())
	require.NoError(t, b.Deregister(alsoFirst))
	require.Empty(t, dev.ranges())
}

func TestRangeByRange(t *testing.T) {
	dev := explicit(1 << 40)
	b := newBackend(t, dev, odpbackend.Config{Mode: odpbackend.ModeRange})
	r := hca.Range{Addr: 0x1234, Len: 99}
	one, err := b.Register(r, hca.LocalWrite)
	require.NoError(t, err)
	two, err := b.Register(r, hca.LocalRead)
	require.NoError(t, err)
	require.NotSame(t, one, two)
	require.Equal(t, hca.LocalWrite|hca.OnDemand, one.Access)
	require.Equal(t, hca.OnDemand, two.Access, "a registration of its own has no access that was not asked for")
	require.Equal(t, []hca.Range{r, r}, dev.ranges())
	require.NoError(t, b.Deregister(one))
	require.NoError(t, b.Deregister(two))
	require.ErrorIs(t, b.Deregister(one), hca.ErrInvalid)
	require.Empty(t, dev.ranges())
}

func TestWhereTheSharedOneIsRefusedTheExactOneIsTried(t *testing.T) {
	for _, kind := range []error{hca.ErrNoMemory, hca.ErrNoKeys, hca.ErrBadAddress, hca.ErrAccess} {
		dev := explicit(1 << 40)
		b := newBackend(t, dev, odpbackend.Config{})
		asked := hca.Range{Addr: 0x7fff_0000, Len: 4096}
		dev.refuse = func(r hca.Range, a hca.Access) error {
			if r != asked {
				return kind
			}
			return nil
		}
		mr, err := b.Register(asked, hca.LocalWrite)
		require.NoError(t, err)
		require.Equal(t, asked, mr.Range)
		require.NoError(t, b.Deregister(mr))

		want := &hca.OpError{Op: "register", Err: kind}
		dev.refuse = func(hca.Range, hca.Access) error { return want }
		_, err = b.Register(asked, hca.LocalWrite)
		require.Same(t, want, err, "what the device says of the exact range reaches the caller")
		require.Empty(t, dev.ranges())

		dev.refuse = nil
		mr, err = b.Register(asked, hca.LocalWrite)
		require.NoError(t, err, "a failure leaves nothing behind")
		require.Greater(t, mr.Range.Len, asked.Len)
		require.NoError(t, b.Deregister(mr))
	}
}

func TestAccessThatTheSharedOneLacks(t *testing.T) {
	want := hca.LocalWrite | hca.RemoteAtomic
	dev := explicit(1 << 40) // no atomics on demand: the device answers for itself
	dev.refuse = func(r hca.Range, a hca.Access) error {
		if a.Has(hca.RemoteAtomic) {
			return hca.ErrAccess
		}
		return nil
	}
	b := newBackend(t, dev, odpbackend.Config{})
	_, err := b.Register(hca.Range{Addr: 4096, Len: 8}, want)
	require.ErrorIs(t, err, hca.ErrAccess)

	onlyWhole := implicit()
	onlyWhole.attr.ODP.Support = false
	onlyWhole.attr.ODP.RC = allOps
	b = newBackend(t, onlyWhole, odpbackend.Config{})
	_, err = b.Register(hca.Range{Addr: 4096, Len: 8}, want)
	require.ErrorIs(t, err, hca.ErrNotSupported)
	require.ErrorContains(t, err, "RemoteAtomic")
}

func TestBadRequests(t *testing.T) {
	b := newBackend(t, implicit(), odpbackend.Config{})
	_, err := b.Register(hca.Range{Addr: 4096}, hca.LocalRead)
	require.ErrorIs(t, err, hca.ErrInvalid)
	_, err = b.Register(hca.Range{Addr: ^uint64(0), Len: 10}, hca.LocalRead)
	require.ErrorIs(t, err, hca.ErrInvalid)
	_, err = b.Register(hca.Range{Addr: 4096, Len: 1}, hca.RemoteWrite)
	require.ErrorIs(t, err, hca.ErrInvalid)
	require.ErrorIs(t, b.Deregister(&hca.MR{}), hca.ErrInvalid)
	require.ErrorIs(t, b.Deregister(nil), hca.ErrInvalid)
}

func TestConcurrentCallersShareOneRegistration(t *testing.T) {
	dev := implicit()
	b := newBackend(t, dev, odpbackend.Config{})
	dev.gate = make(chan struct{})
	const callers = 16
	mrs := make([]*hca.MR, callers)
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() { mrs[i], errs[i] = b.Register(hca.Range{Addr: uint64(i+1) << 30, Len: 1}, hca.LocalRead) })
	}
	close(dev.gate)
	wg.Wait()
	for i := range callers {
		require.NoError(t, errs[i])
	}
	require.Len(t, dev.ranges(), 1)
	for _, mr := range mrs {
		wg.Go(func() {
			if err := b.Deregister(mr); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Empty(t, dev.ranges())
}

func TestConcurrentUseLeavesNothing(t *testing.T) {
	dev := explicit(1 << 40)
	b := newBackend(t, dev, odpbackend.Config{Window: 1 << 20})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 2000 {
				r := hca.Range{Addr: uint64((i+g)%7) << 19, Len: uint64(i%3+1) << 19}
				mr, err := b.Register(r, hca.LocalWrite)
				if err != nil {
					t.Error(err)
					return
				}
				if !mr.Range.Contains(r) {
					t.Errorf("%v does not contain %v", mr.Range, r)
				}
				if err := b.Prefetch(r, i%2 == 0); err != nil {
					t.Error(err)
				}
				if err := b.Deregister(mr); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Empty(t, dev.ranges())
}
