package bpf

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
)

// code is machine code.
type code []byte

func (c code) then(bytes ...byte) code { return append(c, bytes...) }

// imm32 and imm64 are an instruction that ends with a number.
func (c code) imm32(v uint32, op ...byte) code {
	return binary.LittleEndian.AppendUint32(append(c, op...), v)
}

func (c code) imm64(v uint64, op ...byte) code {
	return binary.LittleEndian.AppendUint64(append(c, op...), v)
}

// function makes a Go function of it. It takes no arguments, answers in rax, and
// leaves alone the stack pointer, rbp, r14 and the vector registers.
func (c code) function(t *testing.T) func() uintptr {
	t.Helper()
	at := mmap(t, 0, pageSize, rw, unix.MAP_SHARED|unix.MAP_ANONYMOUS, -1)
	page := bytesOf(hca.Range{Addr: at, Len: pageSize})
	copy(page, c)
	require.NoError(t, unix.Mprotect(page, unix.PROT_READ|unix.PROT_EXEC))
	entry := &at // what a function value points to begins with its code
	return *(*func() uintptr)(unsafe.Pointer(&entry))
}
