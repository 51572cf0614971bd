package bpf

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
	"example.com/holdfast/intercept/internal/eventtest"
)

// vforkUnmap makes a function that has a child of vfork, which shares this address
// space, unmap memory and exit with what munmap answers. The function answers with
// the number of the child. The child uses no stack, which it shares too.
func vforkUnmap(t *testing.T, r hca.Range) func() uintptr {
	t.Helper()
	return code{}.
		imm32(uint32(unix.CLONE_VM|unix.CLONE_VFORK)|uint32(unix.SIGCHLD), 0xbf). // mov edi, flags
		then(0x31, 0xf6, 0x31, 0xd2, 0x45, 0x31, 0xd2, 0x45, 0x31, 0xc0).         // xor esi, esi; edx, edx; r10d, r10d; r8d, r8d
		imm32(unix.SYS_CLONE, 0xb8).then(0x0f, 0x05).                             // mov eax, number; syscall
		then(0x48, 0x85, 0xc0, 0x74, 0x01, 0xc3).                                 // test rax, rax; jz over the next; ret
		imm64(r.Addr, 0x48, 0xbf).imm64(r.Len, 0x48, 0xbe).                       // mov rdi, address; mov rsi, length
		imm32(unix.SYS_MUNMAP, 0xb8).then(0x0f, 0x05).                            // mov eax, number; syscall
		then(0x89, 0xc7, 0xf7, 0xdf).                                             // mov edi, eax; neg edi
		imm32(unix.SYS_EXIT, 0xb8).then(0x0f, 0x05).                              // mov eax, number; syscall
		function(t)
}

// A child of vfork is another process, with another number, in this address space:
// what it takes away, it takes away from us.
func TestSees_VforkedChild(t *testing.T) {
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		a := memory(t, 4)
		gone := part(a, 1, 2)
		kept(t, m, a)
		unmap := vforkUnmap(t, gone)
		var pid int
		require.Equal(t, unmapped(gone), during(t, m, a, func() { pid = int(unmap()) }))
		require.Positive(t, pid)
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, 0, nil)
		require.NoError(t, err)
		require.True(t, status.Exited())
		require.Zero(t, status.ExitStatus(), "munmap failed")
		eventtest.NotMapped(t, watch(t, m, gone).Why, gone)
		kept(t, m, part(a, 0, 1)) // nothing of the child's is under way any more
		kept(t, m, part(a, 3, 1))
	})
}
