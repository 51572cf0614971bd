package hcasim

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
)

// io_uring does not tell the kernel that it wrote to a pinned page. A page of
// shared memory that the program has written itself counts as written; one that
// it has only read does not, and the kernel may give it up as if nothing had been
// received: package documentation, "Its limits". A real adapter's driver marks
// what it pinned for writing.
func TestReceivedIntoSharedMemory(t *testing.T) {
	a, b := full(t)
	x, _ := hcatest.Connect(t, a, b, hca.QPConfig{})
	peer := hcatest.Map(t, page)
	copy(peer, "received")
	mp := hcatest.Register(t, b, peer, hcatest.Everything)
	for _, before := range []string{"written", "prefetched for writing", "read"} {
		m, err := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
		require.NoError(t, err)
		require.Zero(t, m[0])
		switch before {
		case "written":
			m[0] = 1
		case "prefetched for writing":
			require.NoError(t, unix.Madvise(m, unix.MADV_POPULATE_WRITE))
		}
		mr, err := a.Register(hca.RangeOf(m), hcatest.Everything)
		require.NoError(t, err)
		require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMARead, SGE: hcatest.SGE(mr, m), Remote: hcatest.Remote(mp, peer)}))
		hcatest.Want(t, x.SendCQ, 1, hca.WCSuccess)
		require.Equal(t, "received", string(m[:8]))
		require.NoError(t, unix.Madvise(m, unix.MADV_PAGEOUT))
		require.Equal(t, "received", string(m[:8]), "a pinned page is not given up")
		require.NoError(t, a.Deregister(mr))
		require.NoError(t, unix.Madvise(m, unix.MADV_PAGEOUT))
		switch got := string(m[:8]); {
		case got == "received":
		case before != "read":
			t.Errorf("what was received on memory that was %s before is lost: %q", before, got)
		default:
			require.Equal(t, make([]byte, page), m, "all of it is there, or nothing")
			t.Log("what was received on memory that was only read before is lost")
		}
		require.NoError(t, unix.Munmap(m))
	}
}
