//go:build linux && cgo && verbs

package verbs

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
)

// What the errnos of kernels and libraries are taken for, without an adapter:
// each line is an answer that some version gives.

// closedBook is a device that nobody opened: it has attributes and a table of
// registrations and nothing behind them.
func closedBook(mrs ...*hca.MR) *device {
	d := &device{count: new(counters)}
	d.attr = hca.Attr{Name: "none0", PageSize: uint64(os.Getpagesize()), MaxMR: 2}
	d.mu.mrs = map[uint32]*registration{}
	for _, mr := range mrs {
		d.mu.mrs[mr.LKey] = &registration{dev: d, mr: mr}
	}
	return d
}

// kinds are all that an error can be.
var kinds = []error{hca.ErrNoMemory, hca.ErrNoKeys, hca.ErrBadAddress, hca.ErrAccess, hca.ErrNotSupported, hca.ErrBusy,
	hca.ErrClosed, hca.ErrInvalid, hca.ErrTooLong, hca.ErrQueueFull, hca.ErrAgain}

// wantKind checks that err is of that kind and no other, and still has its errno.
func wantKind(t *testing.T, kind, err error, errno syscall.Errno) {
	t.Helper()
	require.ErrorIs(t, err, errno)
	require.ErrorContains(t, err, errnoName(errno))
	for _, k := range kinds {
		require.Equal(t, k == kind, errors.Is(err, k), "%v: %v", k, err)
	}
}

func TestRegisterErrnos(t *testing.T) {
	r := hca.Range{Addr: 1 << 20, Len: 4096}
	full := []*hca.MR{{LKey: 1, Range: r}, {LKey: 2, Range: r}}
	for _, c := range []struct {
		what  string
		errno syscall.Errno
		live  []*hca.MR
		kind  error
	}{
		{"over the lock limit", syscall.ENOMEM, nil, hca.ErrNoMemory},
		{"a lock limit of zero", syscall.EPERM, nil, hca.ErrNoMemory},
		{"not mapped", syscall.EFAULT, nil, hca.ErrBadAddress},
		{"no on-demand paging, kernels of now", syscall.EOPNOTSUPP, nil, hca.ErrNotSupported},
		{"no on-demand paging, older kernels; implicit on Soft-RoCE", syscall.EINVAL, nil, hca.ErrInvalid},
		{"wraps around", syscall.EOVERFLOW, nil, hca.ErrInvalid},
		{"read-only memory", syscall.EACCES, nil, hca.ErrAccess},
		{"no key left: ENOMEM", syscall.ENOMEM, full, hca.ErrNoKeys},
		{"no key left: ENOSPC", syscall.ENOSPC, full, hca.ErrNoKeys},
		{"no key left: Soft-RoCE", syscall.EINVAL, full, hca.ErrNoKeys},
		{"not mapped, and no key left either", syscall.EFAULT, full, hca.ErrBadAddress},
	} {
		t.Run(c.what, func(t *testing.T) {
			err := closedBook(c.live...).registerFailed("register", r, hca.LocalWrite, -int(c.errno))
			wantKind(t, c.kind, err, c.errno)
			require.ErrorContains(t, err, "register on none0")
			require.ErrorContains(t, err, "ibv_reg_mr")
		})
	}
}

// Both ways in which kernels and libraries say that they do not know something
// are a finding, and nothing else is: ENOMEM when a device is opened is no word
// about what it can do.
func TestRefusals(t *testing.T) {
	for errno, yes := range map[syscall.Errno]bool{
		syscall.EOPNOTSUPP: true, syscall.EINVAL: true, syscall.ENOSYS: true,
		syscall.ENOMEM: false, syscall.EPERM: false, syscall.EFAULT: false, syscall.EAGAIN: false, syscall.EIO: false,
	} {
		err := closedBook().registerFailed("open", hca.Whole, hca.LocalWrite|hca.OnDemand, -int(errno))
		require.Equal(t, yes, refusal(err), "%v", errno)
	}
}

func TestAdviseErrnos(t *testing.T) {
	mapped := hcatest.Map(t, 4096)
	gone := hcatest.Map(t, 4096)
	require.NoError(t, unix.Munmap(gone))
	here, hole := hca.RangeOf(mapped), hca.RangeOf(gone)
	for _, c := range []struct {
		what   string
		advice hca.Advice
		r      hca.Range
		known  bool
		errno  syscall.Errno
		kind   error
	}{
		{"nothing mapped", hca.Prefetch, hole, true, syscall.EFAULT, hca.ErrBadAddress},
		{"nothing mapped, for writing", hca.PrefetchWrite, hole, true, syscall.EFAULT, hca.ErrBadAddress},
		{"mapped, and not to be written", hca.PrefetchWrite, here, true, syscall.EFAULT, hca.ErrAccess},
		{"the same as EPERM", hca.PrefetchWrite, here, true, syscall.EPERM, hca.ErrAccess},
		{"invalidated all the time", hca.Prefetch, here, true, syscall.EBUSY, hca.ErrAgain},
		{"a passing state", hca.Prefetch, here, true, syscall.EAGAIN, hca.ErrAgain},
		{"interrupted", hca.Prefetch, here, true, syscall.EINTR, hca.ErrAgain},
		{"a library without it", hca.Prefetch, here, true, syscall.EOPNOTSUPP, hca.ErrNotSupported},
		{"a kernel without it", hca.Prefetch, here, true, syscall.ENOSYS, hca.ErrNotSupported},
		{"more rights wanted than there are: Soft-RoCE", hca.Prefetch, here, true, syscall.EINVAL, hca.ErrNotSupported},
		{"the key went meanwhile: mlx5", hca.Prefetch, here, false, syscall.ENOENT, hca.ErrInvalid},
		{"the key went meanwhile: Soft-RoCE", hca.Prefetch, here, false, syscall.EINVAL, hca.ErrInvalid},
		{"no memory", hca.PrefetchWrite, here, true, syscall.ENOMEM, hca.ErrNoMemory},
	} {
		t.Run(c.what, func(t *testing.T) {
			var live []*hca.MR
			if c.known {
				live = append(live, &hca.MR{LKey: 5, Range: c.r})
			}
			err := closedBook(live...).adviseFailed("advise", c.advice, []hca.SGE{{Addr: c.r.Addr, Len: c.r.Len, LKey: 5}}, -int(c.errno))
			wantKind(t, c.kind, err, c.errno)
		})
	}
}

func TestReregErrnos(t *testing.T) {
	r := hca.Range{Addr: 1 << 20, Len: 4096}
	mr := &hca.MR{LKey: 5, Range: r}
	for _, c := range []struct {
		what    string
		errno   syscall.Errno
		reached bool
		kind    error
	}{
		{"kernel or library has it not", syscall.EOPNOTSUPP, false, hca.ErrNotSupported},
		{"the library saw that it makes no sense", syscall.EINVAL, false, hca.ErrInvalid},
		{"over the lock limit", syscall.ENOMEM, true, hca.ErrNoMemory},
		{"a lock limit of zero", syscall.EPERM, true, hca.ErrNoMemory},
		{"not mapped", syscall.EFAULT, true, hca.ErrBadAddress},
		{"from reading to writing, kernels since 2026", syscall.EACCES, true, hca.ErrAccess},
	} {
		t.Run(c.what, func(t *testing.T) {
			err := closedBook(mr).reregFailed("reregister", mr, r, -int(c.errno), c.reached)
			wantKind(t, c.kind, err, c.errno)
			if c.reached {
				require.ErrorContains(t, err, "may only be deregistered now")
			} else {
				require.NotContains(t, err.Error(), "deregistered")
			}
		})
	}
}

// Events have libibverbs' own names; one that is not known has its number.
func TestEventNames(t *testing.T) {
	for kind, name := range map[int]string{0: "CQ error", 1: "local work queue catastrophic error", 8: "local catastrophic error",
		9: "port active", 10: "port error", 99: "event 99", -1: "event -1"} {
		require.Equal(t, name, eventName(kind))
	}
	require.NotEqual(t, "event 19", eventName(19), "the last one there is")
	require.Equal(t, "event 20", eventName(20))
}
