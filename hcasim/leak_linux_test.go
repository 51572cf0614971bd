package hcasim

import (
	"os"
	"strings"
	"testing"
	"time"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
	"example.com/holdfast/internal/childtest"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// held is what a process holds that a device could leave behind.
type held struct {
	fds, rings, pinned, locked, workers int
}

func holds(t *testing.T) (h held) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	h.fds = len(fds)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	h.rings = strings.Count(string(maps), "io_uring")
	s := status(t)
	h.pinned, h.locked = int(s.VmPin), int(s.VmLck)
	tasks, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	for _, task := range tasks {
		comm, _ := os.ReadFile("/proc/self/task/" + task.Name() + "/comm") // a thread may end meanwhile
		if strings.HasPrefix(string(comm), "iou-") {
			h.workers++
		}
	}
	return h
}

// A device that was used for everything and closed leaves no descriptor,
// mapping, pin, lock, goroutine or kernel worker; nor does a second one. And
// no transfer is handed to a kernel worker, which would cost 50 us.
func TestNothingLeft(t *testing.T) {
	for name, cfg := range map[string]FabricConfig{"full": {}, "lesser": {Lesser: true}} {
		t.Run(name, func(t *testing.T) {
			childtest.Run(t, 30*time.Second, nil, func(t *testing.T) {
				_ = holds(t) // whatever is opened once is open now
				before := holds(t)
				for range 3 {
					t.Run("round", func(t *testing.T) { useEverything(t, cfg) })
					require.Equal(t, before, holds(t))
				}
				goleak.VerifyNone(t)
			})
		})
	}
}

func useEverything(t *testing.T, cfg FabricConfig) {
	a, b := pair(t, cfg)
	x, y := hcatest.Connect(t, a, b, hca.QPConfig{RNRRetry: 7, RNRTimer: time.Minute})
	m := hcatest.Map(t, 1<<20)
	ma := hcatest.Register(t, a, m[:512<<10], hcatest.Everything)
	mb := hcatest.Register(t, b, m[512<<10:], hcatest.Everything|hca.OnDemand)
	require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMAWrite, SGE: hcatest.SGE(ma, m[:512<<10]), Remote: hcatest.Remote(mb, m[512<<10:])}))
	hcatest.Want(t, x.SendCQ, 1, hca.WCSuccess)
	cq, err := a.NewCQ(4) // left open: the device closes it
	require.NoError(t, err)
	require.NoError(t, a.PostRegister(cq, 1, hca.RangeOf(m), 0))
	require.NoError(t, a.Deregister(hcatest.Next(t, cq).MR))
	require.NoError(t, a.PostAdvise(cq, 2, hca.Prefetch, nil))
	hcatest.Want(t, cq, 2, hca.WCSuccess)
	_, err = a.Register(hca.Range{Addr: page, Len: page}, 0) // fails
	require.ErrorIs(t, err, hca.ErrBadAddress)
	// A timer is left running, and a send waits, when the queue pairs close.
	require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 3, Op: hca.Send}))
	require.NoError(t, y.QP.PostRecv(hca.RecvWR{ID: 4}))
	hcatest.Want(t, x.SendCQ, 3, hca.WCSuccess)
	require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 5, Op: hca.Send}))
	require.Zero(t, holds(t).workers)
}

// A device that brought its own fabric takes it along.
func TestOwnFabric(t *testing.T) {
	childtest.Run(t, 30*time.Second, nil, func(t *testing.T) {
		_ = holds(t)
		before := holds(t)
		d, err := Open(Live{Name: "mine"})
		require.NoError(t, err)
		require.Equal(t, "mine", d.Attr().Name)
		require.NoError(t, d.Close())
		require.ErrorIs(t, d.Close(), hca.ErrClosed)
		require.Equal(t, before, holds(t))
	})
}

// After Close every call says so, and a fabric is not closed under a device.
func TestClosed(t *testing.T) {
	f, err := NewFabric(FabricConfig{})
	require.NoError(t, err)
	d, err := Open(Live{Fabric: f})
	require.NoError(t, err)
	require.ErrorIs(t, f.Close(), hca.ErrBusy)
	cq, err := d.NewCQ(1)
	require.NoError(t, err)
	require.NoError(t, d.Close())
	_, err = d.Register(hca.RangeOf(make([]byte, page)), 0)
	require.ErrorIs(t, err, hca.ErrClosed)
	require.ErrorIs(t, d.PostRegister(cq, 0, hca.Range{Addr: page, Len: page}, 0), hca.ErrClosed)
	require.ErrorIs(t, d.PostAdvise(cq, 0, hca.Prefetch, nil), hca.ErrClosed)
	require.ErrorIs(t, d.Advise(hca.Prefetch, nil), hca.ErrClosed)
	_, err = d.NewCQ(1)
	require.ErrorIs(t, err, hca.ErrClosed)
	_, err = d.NewQP(hca.QPConfig{SendCQ: cq})
	require.ErrorIs(t, err, hca.ErrClosed)
	require.ErrorIs(t, cq.Close(), hca.ErrClosed)
	require.NoError(t, f.Close())
	require.ErrorIs(t, f.Close(), hca.ErrClosed)
	_, err = Open(Live{Fabric: f})
	require.ErrorIs(t, err, hca.ErrClosed)
	_, err = Open(Live{Workers: -1})
	require.ErrorIs(t, err, hca.ErrInvalid)
	require.ErrorContains(t, err, "Live.Workers")
}

// A child of the process inherits neither ring nor wire.
func TestCloseOnExec(t *testing.T) {
	a, _ := full(t)
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	rings := 0
	for _, fd := range fds {
		target, _ := os.Readlink("/proc/self/fd/" + fd.Name()) // the directory's own is gone
		if !strings.Contains(target, "io_uring") {
			continue
		}
		rings++
		info, err := os.ReadFile("/proc/self/fdinfo/" + fd.Name())
		require.NoError(t, err)
		require.Regexp(t, "(?m)^flags:\\s+0?2[0-7]{6}$", string(info), "without O_CLOEXEC")
	}
	require.Equal(t, 1, rings)
	for _, fd := range a.fab.host.(*ringHost).pipe {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.NotZero(t, flags&unix.FD_CLOEXEC)
	}
}
