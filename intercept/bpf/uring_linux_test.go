//go:build linux && (amd64 || arm64)

package bpf

import (
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
	"example.com/holdfast/intercept/internal/eventtest"
)

func TestSees_Uring(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		u := eventtest.NewUring(t)
		a := memory(t, 4)
		one := part(a, 1, 1)
		events := during(t, m, a, func() {
			u.Start(t, opMadvise, 0, -1, 0, one.Addr, uint32(one.Len), unix.MADV_DONTNEED)
			require.Zero(t, u.End(t))
		})
		require.Equal(t, discarded(one), slices.Compact(events), "each copy of the program announces it")
		require.Zero(t, peek(one.Addr), "the page went")
		kept(t, m, a)
		require.Empty(t, during(t, m, a, func() {
			u.Start(t, opMadvise, 0, -1, 0, one.Addr, uint32(one.Len), unix.MADV_WILLNEED)
			require.Zero(t, u.End(t))
		}))

		f, fd := watchedFile(t, m)
		events = during(t, m, f, func() {
			u.Start(t, opFallocate, 0, int32(fd), 0, pageSize, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0)
			require.Zero(t, u.End(t))
		})
		require.Equal(t, whole(hca.CauseDiscard), slices.Compact(events))
		require.Zero(t, peek(f.Addr), "the page went")
		kept(t, m, f)

		name, err := unix.BytePtrFromString(filepath.Join(t.TempDir(), "file"))
		require.NoError(t, err)
		open := func(flags uint32) func() {
			return func() {
				u.Start(t, opOpenat, 0, unix.AT_FDCWD, 0, uint64(uintptr(unsafe.Pointer(name))), 0o600, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|flags)
				fd := u.End(t)
				require.Positive(t, fd)
				require.NoError(t, unix.Close(int(fd)))
			}
		}
		require.Empty(t, during(t, m, f, open(0)))
		require.Equal(t, whole(hca.CauseDiscard), slices.Compact(during(t, m, f, open(unix.O_TRUNC))))
		kept(t, m, f)

		require.Equal(t, whole(hca.CauseDiscard), slices.Compact(during(t, m, f, func() {
			u.Start(t, opFtruncate, 0, int32(fd), 0, 0, 0, 0)
			if res := u.End(t); res != 0 {
				require.Equal(t, -int32(unix.EINVAL), res, "before Linux 6.9 there is none")
			}
		})))
		kept(t, m, f)
	})
}

// A worker of io_uring that stands in the kernel is an operation under way,
// until its request is completed.
func TestUnderWay_Uring(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		u, g := eventtest.NewUring(t), newGate(t)
		a, other := memory(t, 1), memory(t, 1)
		g.over(t, a)
		u.Start(t, opMadvise, 0, -1, 0, a.Addr, uint32(a.Len), unix.MADV_DONTNEED)
		g.held(t)
		require.Equal(t, byte(0xa5), peek(a.Addr))
		require.Equal(t, hca.UnkeptUnsettled, m.Watch(a).Why)
		kept(t, m, other)
		g.let(t)
		require.Zero(t, u.End(t))
		kept(t, m, a)
	})
}

// A request that asks for no completion: nobody tells when it is done, so
// nothing is kept from then on, and the monitor says so.
func TestUringWithoutCompletion(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		u := eventtest.NewUring(t)
		a, other := memory(t, 1), memory(t, 1)
		require.Equal(t, discarded(a), slices.Compact(during(t, m, a, func() {
			u.Start(t, opMadvise, cqeSkip, -1, 0, a.Addr, uint32(a.Len), unix.MADV_DONTNEED)
		})))
		require.Equal(t, hca.UnkeptUnsettled, m.Watch(other).Why)
		require.Contains(t, m.String(), "BROKEN")
	})
}
