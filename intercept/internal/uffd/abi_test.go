package uffd

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// The formula of the generic ioctl encoding, asm-generic/ioctl.h.
func ioc(dir, typ, nr, size uintptr) uintptr { return dir<<30 | size<<16 | typ<<8 | nr }

func TestNumbersFollowFromSizes(t *testing.T) {
	const read, write = 2, 1
	require.Equal(t, ioc(read|write, 0xaa, 0x3f, unsafe.Sizeof(apiArg{})), uintptr(cmdAPI))
	require.Equal(t, ioc(read|write, 0xaa, 0, unsafe.Sizeof(registerArg{})), uintptr(cmdRegister))
	require.Equal(t, ioc(read, 0xaa, 1, unsafe.Sizeof(rangeArg{})), uintptr(cmdUnregister))
	require.Equal(t, ioc(read|write, 0xaa, 6, unsafe.Sizeof(writeProtectArg{})), uintptr(cmdWriteProtect))
	require.Equal(t, ioc(read|write, 'f', 16, unsafe.Sizeof(scanArg{})), uintptr(cmdPagemapScan))
	require.Equal(t, ioc(read|write, 'f', 17, unsafe.Sizeof(procmapArg{})), uintptr(cmdProcmapQuery))
	require.Equal(t, uintptr(24), unsafe.Sizeof(PageRegion{}))
}
