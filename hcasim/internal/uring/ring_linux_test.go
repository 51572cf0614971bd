package uring

import (
	"bytes"
	"errors"
	"testing"

	"example.com/holdfast/hca"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func open(t testing.TB) *Ring {
	t.Helper()
	r, err := Open(16, 64)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Skipf("needs io_uring, which is forbidden or absent here: %v", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func mmap(t testing.TB, n int) []byte {
	t.Helper()
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(m) }) // a test may have unmapped it
	return m
}

func addr(b []byte) uint64 { return hca.RangeOf(b).Addr }

// A linked pair moves bytes through a pipe, fixed to plain and back, many
// times around both rings.
func TestLinkedPair(t *testing.T) {
	r := open(t)
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	a, b := mmap(t, 4096), mmap(t, 4096)
	require.NoError(t, r.UpdateBuffer(7, addr(a), 4096))
	res := make([]int32, 2)
	for i := range 100 {
		a[100], b[100] = byte(i), 0xff
		ops := []Op{
			{Write: true, Link: true, FD: int32(pipe[1]), Buf: 7, Addr: addr(a), Len: 4096},
			{FD: int32(pipe[0]), Buf: NoBuffer, Addr: addr(b), Len: 4096},
		}
		require.NoError(t, r.Do(ops, res))
		require.Equal(t, []int32{4096, 4096}, res)
		require.True(t, bytes.Equal(a, b))
	}
	// A link that breaks cancels what follows.
	require.NoError(t, unix.Munmap(b))
	require.NoError(t, r.Do([]Op{
		{Write: true, Link: true, FD: int32(pipe[1]), Buf: NoBuffer, Addr: addr(b), Len: 4096},
		{FD: int32(pipe[0]), Buf: 7, Addr: addr(a), Len: 4096},
	}, res))
	require.Equal(t, []int32{-int32(unix.EFAULT), -int32(unix.ECANCELED)}, res)
	// An empty slot is no buffer.
	require.NoError(t, r.UpdateBuffer(7, 0, 0))
	require.NoError(t, r.Do([]Op{{Write: true, FD: int32(pipe[1]), Buf: 7, Addr: addr(a), Len: 8}}, res))
	require.Equal(t, -int32(unix.EFAULT), res[0])
}

func TestUpdateErrors(t *testing.T) {
	r := open(t)
	m := mmap(t, 4096)
	require.NoError(t, unix.Mprotect(m, unix.PROT_READ))
	require.ErrorIs(t, r.UpdateBuffer(0, addr(m), 4096), unix.EFAULT, "read-only")
	require.ErrorIs(t, r.UpdateBuffer(0, 0x1000, 4096), unix.EFAULT, "not mapped")
	require.ErrorIs(t, r.UpdateBuffer(64, addr(m), 4096), unix.EINVAL, "no such slot")
}

func TestDoAllocatesNothing(t *testing.T) {
	r := open(t)
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	m := mmap(t, 4096)
	ops := []Op{
		{Write: true, Link: true, FD: int32(pipe[1]), Buf: NoBuffer, Addr: addr(m), Len: 64},
		{FD: int32(pipe[0]), Buf: NoBuffer, Addr: addr(m) + 64, Len: 64},
	}
	res := make([]int32, 2)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if err := r.Do(ops, res); err != nil || res[1] != 64 {
			t.Fatal(err, res)
		}
		if err := r.UpdateBuffer(3, addr(m), 4096); err != nil {
			t.Fatal(err)
		}
	}))
}
