//go:build linux && cgo && verbs

package verbs

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
)

// Registrations that begin and end anywhere in a page, and transfers that do.
func TestUnaligned(t *testing.T) {
	require.Empty(t, moveUnaligned(t, open(t), everything))
}

// On-demand registrations the same, where the device says that it can be
// relied upon; and where it says that it cannot, that is true.
func TestUnalignedOnDemand(t *testing.T) {
	d := open(t)
	needODP(t, d, hca.ODPSend|hca.ODPRecv|hca.ODPWrite|hca.ODPRead)
	wrong := moveUnaligned(t, d, everything|hca.OnDemand)
	cautious, err := Open(Config{Name: adapter(t)})
	require.NoError(t, err)
	require.Equal(t, cautious.Attr().ODP.Support, len(wrong) == 0, "%s: %v", cautious.Attr().Form, wrong)
	if len(wrong) > 0 {
		t.Logf("%d transfers were wrong, as the device says: %s", len(wrong), cautious.Attr().Form)
		require.Zero(t, cautious.Attr().ODP, "what is not to be relied upon is not offered")
		_, err := cautious.Register(hca.RangeOf(hcatest.Map(t, page)), hca.LocalWrite|hca.OnDemand)
		require.ErrorIs(t, err, hca.ErrNotSupported)
	}
	require.NoError(t, cautious.Close())
}

// moveUnaligned answers what went wrong.
func moveUnaligned(t *testing.T, d *device, access hca.Access) (wrong []string) {
	for _, op := range []hca.Op{hca.RDMAWrite, hca.RDMARead, hca.Send} {
		x, y := hcatest.Connect(t, d, d, hca.QPConfig{})
		for _, from := range []int{0, 1, 100, page - 1} {
			sm, dm := hcatest.Map(t, 8*page), hcatest.Map(t, 8*page)
			src, dst := hcatest.Register(t, d, sm[from:7*page+3], access), hcatest.Register(t, d, dm[from:7*page+3], access)
			for _, off := range []int{0, 1, 5000} {
				a, b := sm[from+off:from+off+2*page+7], dm[from+off:from+off+2*page+7]
				(&buffer{mem: a}).fill(int(op)*1000 + from + off)
				clear(dm)
				wr := hca.SendWR{ID: 1, Op: op, SGE: hcatest.SGE(src, a), Remote: hcatest.Remote(dst, b)}
				switch op {
				case hca.RDMARead:
					wr.SGE, wr.Remote = hcatest.SGE(dst, b), hcatest.Remote(src, a)
				case hca.Send:
					require.NoError(t, y.QP.PostRecv(hca.RecvWR{ID: 2, SGE: hcatest.SGE(dst, b)}))
				}
				require.NoError(t, x.QP.PostSend(wr))
				hcatest.Want(t, x.SendCQ, 1, hca.WCSuccess)
				if op == hca.Send {
					hcatest.Want(t, y.RecvCQ, 2, hca.WCSuccess)
				}
				if string(a) != string(b) {
					wrong = append(wrong, fmt.Sprintf("operation %d, registered from byte %d on, moved from byte %d on: %s", op, from, off, differ(a, b)))
				}
			}
		}
	}
	return wrong
}
