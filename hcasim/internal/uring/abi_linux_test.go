package uring

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// The sizes are those of the kernel's ABI, which never change.
func TestSizes(t *testing.T) {
	for name, s := range map[string][2]uintptr{
		"io_uring_sqe":           {unsafe.Sizeof(sqe{}), 64},
		"io_uring_cqe":           {unsafe.Sizeof(cqe{}), 16},
		"io_uring_params":        {unsafe.Sizeof(params{}), 120},
		"io_sqring_offsets":      {unsafe.Sizeof(sqOffsets{}), 40},
		"io_cqring_offsets":      {unsafe.Sizeof(cqOffsets{}), 40},
		"io_uring_rsrc_register": {unsafe.Sizeof(rsrcRegister{}), 32},
		"io_uring_rsrc_update2":  {unsafe.Sizeof(rsrcUpdate2{}), 32},
		"iovec":                  {unsafe.Sizeof(iovec{}), 16},
	} {
		require.Equal(t, s[1], s[0], "struct %s", name)
	}
	require.EqualValues(t, 40, unsafe.Offsetof(sqe{}.bufIndex))
	require.EqualValues(t, 80, unsafe.Offsetof(params{}.cqOff))
	require.EqualValues(t, 24, unsafe.Offsetof(rsrcUpdate2{}.nr))
}

// The same, and the numbers, as the kernel's header has them.
func TestHeader(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("needs gcc, to compare with the kernel's header")
	}
	if _, err := os.Stat("/usr/include/linux/io_uring.h"); err != nil {
		t.Skip("needs linux/io_uring.h, to compare with it")
	}
	const src = `#include <stddef.h>
#include <linux/io_uring.h>
#define IS(a, b) _Static_assert((a) == (b), #a " is " #b)
IS(sizeof(struct io_uring_sqe), 64); IS(sizeof(struct io_uring_cqe), 16); IS(sizeof(struct io_uring_params), 120);
IS(sizeof(struct io_sqring_offsets), 40); IS(sizeof(struct io_cqring_offsets), 40);
IS(sizeof(struct io_uring_rsrc_register), 32); IS(sizeof(struct io_uring_rsrc_update2), 32);
IS(offsetof(struct io_uring_sqe, buf_index), 40); IS(offsetof(struct io_uring_params, cq_off), 80);
IS(offsetof(struct io_uring_rsrc_update2, nr), 24);
IS(IORING_OP_READ_FIXED, 4); IS(IORING_OP_WRITE_FIXED, 5); IS(IORING_OP_READ, 22); IS(IORING_OP_WRITE, 23);
IS(IOSQE_IO_LINK, 4); IS(IORING_OFF_SQ_RING, 0); IS(IORING_OFF_SQES, 0x10000000); IS(IORING_ENTER_GETEVENTS, 1);
IS(IORING_FEAT_SINGLE_MMAP, 1); IS(IORING_FEAT_NODROP, 2); IS(IORING_FEAT_RSRC_TAGS, 1 << 10);
IS(IORING_REGISTER_BUFFERS2, 15); IS(IORING_REGISTER_BUFFERS_UPDATE, 16); IS(IORING_RSRC_REGISTER_SPARSE, 1);
`
	file := filepath.Join(t.TempDir(), "abi.c")
	require.NoError(t, os.WriteFile(file, []byte(src), 0o600))
	out, err := exec.Command(gcc, "-fsyntax-only", file).CombinedOutput()
	if strings.Contains(string(out), "undeclared") || strings.Contains(string(out), "incomplete type") {
		t.Skipf("the kernel's header is older than Linux 5.19:\n%s", out)
	}
	require.NoError(t, err, "%s", out)
}
