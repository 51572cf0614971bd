//go:build linux && cgo && verbs

package verbs

import (
	"context"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
)

const page = 4096

// adapter is the adapter that the tests use: the one that HOLDFAST_ADAPTER
// names, which must then be there, or the first one. Where there is none the
// test skips; .ci/softroce names one, so that nothing skips there.
func adapter(t testing.TB) string {
	t.Helper()
	name := os.Getenv("HOLDFAST_ADAPTER")
	names, err := List()
	if name == "" && (err != nil || len(names) == 0) {
		t.Skipf("needs an RDMA adapter, and this machine has none (%v); .ci/softroce runs a machine with one", err)
	}
	require.NoError(t, err)
	if name == "" {
		return names[0]
	}
	require.Contains(t, names, name)
	return name
}

// open opens the adapter until the end of the test, with on-demand paging even
// if that is right for whole pages only: what the tests move on demand begins at
// the beginning of a page, but for those that are about this.
func open(t testing.TB) *device {
	t.Helper()
	d, err := Open(Config{Name: adapter(t), TrustODP: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d.(*device)
}

// needODP skips where the adapter has no on-demand paging for the operations
// on RC.
func needODP(t testing.TB, d *device, ops hca.ODPOps) {
	t.Helper()
	if !d.attr.ODP.RC.Has(ops) {
		t.Skipf("%s has no on-demand paging for this operation", d.attr.Name)
	}
}

func needPrefetch(t testing.TB, d *device) {
	t.Helper()
	if !d.attr.ODP.Prefetch {
		t.Skipf("%s has no prefetch: %s", d.attr.Name, d.attr.Form)
	}
}

// buffer is mapped memory and its registration.
type buffer struct {
	mem []byte
	mr  *hca.MR
}

func newBuffer(t testing.TB, d *device, n int, a hca.Access) *buffer {
	t.Helper()
	mem := hcatest.Map(t, n)
	return &buffer{mem, hcatest.Register(t, d, mem, a)}
}

func (b *buffer) sge() hca.SGE           { return hcatest.SGE(b.mr, b.mem) }
func (b *buffer) remote() hca.RemoteAddr { return hcatest.Remote(b.mr, b.mem) }

// drop throws the pages away; what comes in their place is zero.
func (b *buffer) drop(t testing.TB) {
	t.Helper()
	require.NoError(t, unix.Madvise(b.mem, unix.MADV_DONTNEED))
}

// fill writes a pattern that differs from that of other seeds everywhere.
func (b *buffer) fill(seed int) {
	for i := range b.mem {
		b.mem[i] = byte(i) ^ byte(i>>8)*3 ^ byte(seed)*7 ^ byte(seed>>8)
	}
}

// same compares without printing megabytes.
func same(t testing.TB, want, got []byte, format string, args ...any) {
	t.Helper()
	for i := range want {
		if want[i] != got[i] {
			t.Fatalf("byte %d is %#x instead of %#x: "+format, append([]any{i, got[i], want[i]}, args...)...)
		}
	}
}

// pointer and bytesAt are for memory that Go does not know: what is mapped and
// unmapped at a given address.
func pointer(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

func bytesAt(p unsafe.Pointer, n int) []byte { return unsafe.Slice((*byte)(p), n) }

// scaled is a number of rounds: 1 in 10 of n, or all of them where
// HOLDFAST_SOAK asks for the long form.
func scaled(n int) int {
	if os.Getenv("HOLDFAST_SOAK") != "" {
		return n
	}
	return n / 10
}

// nextOf waits for a completion where there is no test to fail: in goroutines.
func nextOf(cq hca.CQ, limit time.Duration) (hca.WC, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for {
		var wc [1]hca.WC
		if n, err := cq.Poll(wc[:]); n == 1 || err != nil {
			return wc[0], err
		}
		if err := cq.Wait(ctx); err != nil {
			return hca.WC{}, err
		}
	}
}
