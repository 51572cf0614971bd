package odpbackend_test

import (
	"context"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/hcasim"
	"example.com/holdfast/internal/childtest"
	"example.com/holdfast/odpbackend"
)

const liveLimit = 30 * time.Second

// onLive runs body in a child, once for each mode, with a live device.
func onLive(t *testing.T, body func(t *testing.T, dev *hcasim.Device, b *odpbackend.Backend)) {
	for _, cfg := range []odpbackend.Config{
		{},
		{Mode: odpbackend.ModeWindows},
		{Mode: odpbackend.ModeRange},
	} {
		t.Run(cfg.Mode.String(), func(t *testing.T) {
			childtest.Run(t, liveLimit, nil, func(t *testing.T) {
				dev, err := hcasim.Open(hcasim.Live{})
				require.NoError(t, err)
				defer func() { require.NoError(t, dev.Close(), "no registration is left") }()
				b, err := odpbackend.New(dev, cfg)
				require.NoError(t, err)
				body(t, dev, b)
			})
		})
	}
}

func mapped(t *testing.T, n int) []byte {
	t.Helper()
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	return m
}

// resident counts the pages of m that are in memory.
func resident(t *testing.T, m []byte) (pages int) {
	t.Helper()
	vec := make([]byte, len(m)/4096)
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)), uintptr(unsafe.Pointer(&vec[0])))
	require.Zero(t, errno)
	for _, v := range vec {
		pages += int(v & 1)
	}
	return pages
}

func TestLiveChoosesTheWholeAddressSpace(t *testing.T) {
	childtest.Run(t, liveLimit, nil, func(t *testing.T) {
		dev, err := hcasim.Open(hcasim.Live{})
		require.NoError(t, err)
		defer func() { require.NoError(t, dev.Close()) }()
		b, err := odpbackend.New(dev, odpbackend.Config{})
		require.NoError(t, err)
		require.Equal(t, odpbackend.ModeWhole, b.Mode())
		require.Equal(t, b.Info().Name, b.String(), "nothing better was refused")
	})
}

// Nothing is pinned, mapped or not; prefetch makes just the pages asked for
// ready, and nothing beyond the end of the registration.
func TestLiveRegisterAndPrefetch(t *testing.T) {
	onLive(t, func(t *testing.T, dev *hcasim.Device, b *odpbackend.Backend) {
		if !dev.Attr().ODP.Prefetch {
			t.Skip("the kernel has no MADV_POPULATE_READ (Linux 5.14)")
		}
		const pages = 16
		m := mapped(t, 2*pages*4096)
		defer func() { require.NoError(t, unix.Munmap(m)) }()
		half := m[:pages*4096]
		mr, err := b.Register(hca.RangeOf(half), hca.LocalWrite)
		require.NoError(t, err)
		require.Zero(t, dev.Counters().PinnedNow)
		require.Zero(t, resident(t, m))

		part := hca.RangeOf(half[4096+1 : 3*4096+1]) // touches three pages
		require.NoError(t, b.Prefetch(part, true))
		require.Equal(t, 3, resident(t, m))
		require.NoError(t, b.Prefetch(hca.RangeOf(half), false))
		require.Equal(t, pages, resident(t, m), "the last page, and not the one behind it")
		require.NoError(t, b.Deregister(mr))
	})
}

func TestLivePostPrefetch(t *testing.T) {
	onLive(t, func(t *testing.T, dev *hcasim.Device, b *odpbackend.Backend) {
		if !dev.Attr().ODP.Prefetch {
			t.Skip("the kernel has no MADV_POPULATE_READ (Linux 5.14)")
		}
		ctx, cancel := context.WithTimeout(context.Background(), liveLimit/2)
		defer cancel()
		cq, err := dev.NewCQ(8)
		require.NoError(t, err)
		defer func() { require.NoError(t, cq.Close()) }()
		m := mapped(t, 8*4096)
		mr, err := b.Register(hca.RangeOf(m), hca.LocalWrite)
		require.NoError(t, err)

		require.NoError(t, b.PostPrefetch(cq, 7, hca.RangeOf(m), true))
		wc := wait(t, ctx, cq)
		require.NoError(t, wc.Err)
		require.Equal(t, uint64(7), wc.ID)
		require.Equal(t, hca.WCAdvise, wc.Op)
		require.Equal(t, 8, resident(t, m))

		// Where nothing is mapped, as nothing ever is in the first pages: an
		// outcome, and nothing else.
		nowhere := hca.Range{Addr: 4096, Len: 8192}
		none, err := b.Register(nowhere, hca.LocalWrite)
		require.NoError(t, err)
		require.NoError(t, b.PostPrefetch(cq, 8, nowhere, true))
		require.ErrorIs(t, wait(t, ctx, cq).Err, hca.ErrBadAddress)
		require.ErrorIs(t, b.Prefetch(nowhere, true), hca.ErrBadAddress)
		require.NoError(t, b.Deregister(none))

		// Given back at once: it completes in one way or the other.
		require.NoError(t, b.PostPrefetch(cq, 9, hca.RangeOf(m), true))
		require.NoError(t, b.Deregister(mr))
		require.Equal(t, uint64(9), wait(t, ctx, cq).ID)
		require.NoError(t, unix.Munmap(m))
	})
}

// wait gives the next completion.
func wait(t *testing.T, ctx context.Context, cq hca.CQ) hca.WC {
	t.Helper()
	var wc [1]hca.WC
	for {
		n, err := cq.Poll(wc[:])
		require.NoError(t, err)
		if n == 1 {
			return wc[0]
		}
		require.NoError(t, cq.Wait(ctx))
	}
}

// A registration follows the address space: new memory at the address is what
// the adapter sees, with the key from before.
func TestLiveFollows(t *testing.T) {
	onLive(t, func(t *testing.T, dev *hcasim.Device, b *odpbackend.Backend) {
		ctx, cancel := context.WithTimeout(context.Background(), liveLimit/2)
		defer cancel()
		cq, err := dev.NewCQ(16)
		require.NoError(t, err)
		defer func() { require.NoError(t, cq.Close()) }()
		var qps [2]hca.QP
		for i := range qps {
			qps[i], err = dev.NewQP(hca.QPConfig{SendCQ: cq})
			require.NoError(t, err)
			defer func() { require.NoError(t, qps[i].Close()) }()
		}
		require.NoError(t, qps[0].Connect(qps[1].Addr()))
		require.NoError(t, qps[1].Connect(qps[0].Addr()))

		src, dst := mapped(t, 8192), mapped(t, 8192)
		from, err := b.Register(hca.RangeOf(src), hca.LocalRead)
		require.NoError(t, err)
		to, err := b.Register(hca.RangeOf(dst), hca.LocalWrite|hca.RemoteWrite)
		require.NoError(t, err)
		for i := range 20 {
			for _, m := range [][]byte{src, dst} {
				_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(m)), 8192, unix.PROT_READ|unix.PROT_WRITE,
					unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED)
				require.NoError(t, err)
			}
			src[0], src[8191] = byte(i+1), byte(i+101)
			require.NoError(t, qps[0].PostSend(hca.SendWR{Op: hca.RDMAWrite, SGE: hca.SGE{Addr: hca.RangeOf(src).Addr, Len: 8192, LKey: from.LKey},
				Remote: hca.RemoteAddr{Addr: hca.RangeOf(dst).Addr, RKey: to.RKey}}))
			require.Equal(t, hca.WCSuccess, wait(t, ctx, cq).Status)
			require.Equal(t, byte(i+1), dst[0])
			require.Equal(t, byte(i+101), dst[8191])
		}
		require.NoError(t, b.Deregister(from))
		require.NoError(t, b.Deregister(to))
		require.NoError(t, unix.Munmap(src))
		require.NoError(t, unix.Munmap(dst))
	})
}
