package bpf

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
	"example.com/holdfast/intercept/internal/eventtest"
)

// narrowCall makes a function of machine code that makes a system call of 32
// bits, with numbers and registers of its own, and ignores what it answers.
func narrowCall(t *testing.T, number, first, second uint32) func() {
	t.Helper()
	call := code{0x53}. // push rbx
				imm32(number, 0xb8).          // mov eax, number
				imm32(first, 0xbb).           // mov ebx, first
				imm32(second, 0xb9).          // mov ecx, second
				then(0xcd, 0x80, 0x5b, 0xc3). // int 0x80; pop rbx; ret
				function(t)
	return func() { call() }
}

// A system call of 32 bits from a process of 64 is taken for one that may have
// changed anything.
func TestSees_NarrowCall(t *testing.T) {
	const getpid, munmap = 20, 91 // asm/unistd_32.h
	if os.Getenv("HOLDFAST_BPF_NARROW") != "" {
		narrowCall(t, getpid, 0, 0)()
		return
	}
	try := exec.Command(os.Args[0], "-test.run=^TestSees_NarrowCall$")
	try.Env = append(os.Environ(), "HOLDFAST_BPF_NARROW=1")
	if out, err := try.CombinedOutput(); err != nil {
		t.Skipf("this kernel makes no system calls of 32 bits (IA32_EMULATION): %v\n%.300s", err, out)
	}
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		low := mmap(t, 0, pageSize, rw, private|unix.MAP_32BIT, -1)
		a := hca.Range{Addr: low, Len: pageSize}
		kept(t, m, a)
		call := narrowCall(t, munmap, uint32(low), uint32(pageSize))
		require.Equal(t, whole(hca.CauseOwner), during(t, m, a, call))
		eventtest.NotMapped(t, watch(t, m, a).Why, a)
	})
}
