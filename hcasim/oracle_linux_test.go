package hcasim

import (
	"runtime"
	"testing"
	"time"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
	"example.com/holdfast/internal/childtest"
	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const page = 4096

func status(t testing.TB) procfs.ProcStatus {
	t.Helper()
	p, err := procfs.Self()
	require.NoError(t, err)
	s, err := p.NewStatus()
	require.NoError(t, err)
	return s
}

// The problem that the whole project is about, without anything in between:
// munmap and mmap at the same address, and a key that was good before delivers
// old bytes and loses new ones, with success as the status.
func TestStaleKeyCorrupts(t *testing.T) {
	a, b := full(t)
	x, y := hcatest.Connect(t, a, b, hca.QPConfig{})
	peer := hcatest.Map(t, page)
	mp := hcatest.Register(t, b, peer, hcatest.Everything)
	const rounds = 20
	stale := 0
	for i := range rounds {
		buf, err := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		require.NoError(t, err)
		addr := hca.RangeOf(buf).Addr
		copy(buf, "old bytes")
		mr, err := a.Register(hca.RangeOf(buf), hcatest.Everything)
		require.NoError(t, err)
		require.NoError(t, unix.Munmap(buf))
		buf, err = unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		require.NoError(t, err)
		if hca.RangeOf(buf).Addr == addr { // the kernel's choice; nobody asked for it
			stale++
			copy(buf, "new bytes")
			require.NoError(t, y.QP.PostRecv(hca.RecvWR{ID: 1, SGE: hcatest.SGE(mp, peer)}))
			require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.Send, SGE: hcatest.SGE(mr, buf)}))
			hcatest.Want(t, x.SendCQ, 2, hca.WCSuccess)
			hcatest.Want(t, y.RecvCQ, 1, hca.WCSuccess)
			require.Equal(t, "old bytes", string(peer[:9]), "the message carries what is not there any more")

			copy(peer, "to be received")
			require.NoError(t, x.QP.PostRecv(hca.RecvWR{ID: 3, SGE: hcatest.SGE(mr, buf)}))
			require.NoError(t, y.QP.PostSend(hca.SendWR{ID: 4, Op: hca.Send, SGE: hcatest.SGE(mp, peer)}))
			hcatest.Want(t, x.RecvCQ, 3, hca.WCSuccess)
			hcatest.Want(t, y.SendCQ, 4, hca.WCSuccess)
			require.Equal(t, "new bytes", string(buf[:9]), "the message that was received is nowhere")
		}
		require.NoError(t, a.Deregister(mr), "round %d", i)
		require.NoError(t, unix.Munmap(buf))
	}
	require.NotZero(t, stale, "the kernel never gave the same address again")
	t.Logf("%d of %d rounds got the same address", stale, rounds)
}

// The kernel's own count of pinned memory follows the registrations.
func TestVmPin(t *testing.T) {
	childtest.Run(t, 30*time.Second, nil, func(t *testing.T) {
		a, _ := full(t)
		before := status(t).VmPin
		var mrs []*hca.MR
		for i := range 8 {
			m := hcatest.Map(t, 1<<20)
			mr, err := a.Register(hca.RangeOf(m), hcatest.Everything)
			require.NoError(t, err)
			mrs = append(mrs, mr)
			require.Equal(t, before+uint64(i+1)<<20, status(t).VmPin)
			require.EqualValues(t, (i+1)<<20, a.Counters().PinnedNow)
		}
		od := hcatest.Register(t, a, hcatest.Map(t, 1<<20), hcatest.Everything|hca.OnDemand)
		require.Equal(t, before+8<<20, status(t).VmPin, "on demand pins nothing")
		require.NoError(t, a.Deregister(od))
		for i, mr := range mrs {
			require.NoError(t, a.Deregister(mr))
			require.Equal(t, before+uint64(7-i)<<20, status(t).VmPin)
		}
	})
}

// The lock limit of an ordinary user is the kernel's, and the error says all
// there is to know about it.
func TestMemlockLimit(t *testing.T) {
	childtest.Run(t, 30*time.Second, nil, func(t *testing.T) {
		childtest.DropPrivileges(t, 54010, 1<<20)
		a, _ := full(t)
		testLimit(t, a)
	})
}

func TestMemlockLimitLesser(t *testing.T) {
	childtest.Run(t, 30*time.Second, nil, func(t *testing.T) {
		childtest.DropPrivileges(t, 54011, 1<<20)
		a, _ := pair(t, FabricConfig{Lesser: true})
		testLimit(t, a)
	})
}

func testLimit(t *testing.T, a *Device) {
	first, second := hcatest.Map(t, 768<<10), hcatest.Map(t, 512<<10)
	mr := hcatest.Register(t, a, first, hcatest.Everything)
	_, err := a.Register(hca.RangeOf(second), hcatest.Everything)
	require.ErrorIs(t, err, hca.ErrNoMemory)
	require.ErrorContains(t, err, "RLIMIT_MEMLOCK is 1 MiB")
	require.ErrorContains(t, err, "768 KiB")
	require.EqualValues(t, 768<<10, a.Counters().PinnedNow)
	s := status(t)
	require.EqualValues(t, 768<<10, s.VmPin+s.VmLck, "the refused one left nothing")
	hcatest.Register(t, a, second, hcatest.Everything|hca.OnDemand) // costs nothing
	require.NoError(t, a.Deregister(mr))
	hcatest.Register(t, a, second, hcatest.Everything)
}

// Slots are a limit of their own, and a refusal for want of one leaves all as
// it was.
func TestNoKeysLeft(t *testing.T) {
	childtest.Run(t, 60*time.Second, nil, func(t *testing.T) {
		a, b := full(t)
		m := hcatest.Map(t, page)
		mrs := make([]*hca.MR, maxPinned)
		for i := range mrs {
			var err error
			mrs[i], err = a.Register(hca.RangeOf(m), 0)
			require.NoError(t, err)
		}
		_, err := b.Register(hca.RangeOf(m), 0)
		require.ErrorIs(t, err, hca.ErrNoKeys, "the slots belong to the fabric")
		require.NoError(t, a.Deregister(mrs[5]))
		mrs[5], err = b.Register(hca.RangeOf(m), 0)
		require.NoError(t, err)
		require.NoError(t, b.Deregister(mrs[5]))
		for i, mr := range mrs {
			if i != 5 {
				require.NoError(t, a.Deregister(mr))
			}
		}
		require.Zero(t, status(t).VmPin)
	})
}

// A key does not come back to life when its slot is used again.
func TestStaleKeyOfUsedSlot(t *testing.T) {
	a, b := full(t)
	x, _ := hcatest.Connect(t, a, b, hca.QPConfig{})
	src, dst := hcatest.Map(t, page), hcatest.Map(t, page)
	ms := hcatest.Register(t, a, src, hcatest.Everything)
	old, err := b.Register(hca.RangeOf(dst), hcatest.Everything)
	require.NoError(t, err)
	require.NoError(t, b.Deregister(old))
	var now *hca.MR
	for range maxPinned {
		now, err = b.Register(hca.RangeOf(dst), hcatest.Everything)
		require.NoError(t, err)
		require.NotEqual(t, old.RKey, now.RKey)
		if keyIndex(now.RKey) == keyIndex(old.RKey) {
			break
		}
		require.NoError(t, b.Deregister(now))
	}
	require.Equal(t, keyIndex(old.RKey), keyIndex(now.RKey), "the slot is in use again")
	require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMAWrite, SGE: hcatest.SGE(ms, src), Remote: hcatest.Remote(old, dst)}))
	hcatest.Want(t, x.SendCQ, 1, hca.WCRemAccessErr)
	require.NoError(t, b.Deregister(now))
}

// A registration that fails gives its place back.
func TestFailedPinLeavesNothing(t *testing.T) {
	a, _ := full(t)
	for range 5 {
		for _, addr := range []uint64{page, ^uint64(0) - page} {
			_, err := a.Register(hca.Range{Addr: addr, Len: page}, 0)
			require.ErrorIs(t, err, hca.ErrBadAddress)
		}
	}
	require.Equal(t, a.fab.pinned.fresh, a.fab.pinned.used, "handed out and given back")
	require.Zero(t, a.Counters().Registrations)
	require.Zero(t, a.Counters().PinnedNow)
}

// Deregister returns only when the transfer that uses the memory is done.
func TestDeregisterWaits(t *testing.T) {
	a, b := full(t)
	x, _ := hcatest.Connect(t, a, b, hca.QPConfig{})
	const n = 64 << 20 // about 15 ms
	src, dst := hcatest.Map(t, n), hcatest.Map(t, n)
	ms := hcatest.Register(t, a, src, hca.OnDemand)
	md := hcatest.Register(t, b, dst, hcatest.Everything|hca.OnDemand)
	posted := make(chan error, 1)
	go func() {
		posted <- x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMAWrite, SGE: hcatest.SGE(ms, src), Remote: hcatest.Remote(md, dst)})
	}()
	reg := md.Handle.(*region)
	for deadline := time.Now().Add(10 * time.Second); reg.state.Load() == 0; runtime.Gosched() {
		require.True(t, time.Now().Before(deadline), "the transfer never began")
	}
	require.NoError(t, b.Deregister(md))
	require.Equal(t, regionDead, int(reg.state.Load()), "nobody uses it")
	require.NoError(t, <-posted)
	hcatest.Want(t, x.SendCQ, 1, hca.WCSuccess)
}
