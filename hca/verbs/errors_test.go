package verbs

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// An error says the kind, the call and the errno, and is found by both.
func TestCallError(t *testing.T) {
	var err error = &hca.OpError{Op: "register", Device: "rxe0", Err: callFailed("ibv_reg_mr", -int(syscall.EFAULT), nil)}
	require.ErrorIs(t, err, hca.ErrBadAddress)
	require.ErrorIs(t, err, syscall.EFAULT)
	require.NotErrorIs(t, err, hca.ErrInvalid)
	require.Equal(t, "register on rxe0: bad address (ibv_reg_mr: EFAULT, bad address)", err.Error())

	err = callFailed("ibv_post_send", -int(syscall.ENOMEM), hca.ErrQueueFull)
	require.ErrorIs(t, err, hca.ErrQueueFull)
	require.NotErrorIs(t, err, hca.ErrNoMemory)

	err = callFailed("ibv_poll_cq", -12345, nil)
	require.ErrorContains(t, err, "errno 12345")
	require.Equal(t, "ETIMEDOUT", errnoName(syscall.ETIMEDOUT))
	require.Equal(t, "errno 4095", errnoName(4095))
}

func TestKinds(t *testing.T) {
	for errno, kind := range map[syscall.Errno]error{
		syscall.EINVAL: hca.ErrInvalid, syscall.ENOENT: hca.ErrInvalid, syscall.EFAULT: hca.ErrBadAddress,
		syscall.ENOMEM: hca.ErrNoMemory, syscall.EPERM: hca.ErrAccess, syscall.EACCES: hca.ErrAccess,
		syscall.ENOSPC: hca.ErrNoKeys, syscall.EOPNOTSUPP: hca.ErrNotSupported, syscall.ENOSYS: hca.ErrNotSupported,
		syscall.EAGAIN: hca.ErrAgain, syscall.EBUSY: hca.ErrBusy,
	} {
		require.True(t, errors.Is(kindOf(errno), kind), "%v", errno)
	}
	require.Error(t, kindOf(syscall.EXDEV), "an errno without a kind is still an error")
}
