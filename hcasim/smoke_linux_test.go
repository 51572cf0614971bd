package hcasim

import (
	"testing"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
	"github.com/stretchr/testify/require"
)

func pair(t testing.TB, cfg FabricConfig) (*Device, *Device) {
	t.Helper()
	f, err := NewFabric(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	var d [2]*Device
	for i := range d {
		d[i], err = Open(Live{Fabric: f})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d[i].Close()) })
	}
	return d[0], d[1]
}

func TestSmoke(t *testing.T) {
	for _, cfg := range []FabricConfig{{}, {Lesser: true}} {
		a, b := pair(t, cfg)
		t.Log(a.Attr())
		x, y := hcatest.Connect(t, a, b, hca.QPConfig{})
		for _, od := range []hca.Access{0, hca.OnDemand} {
			const n = 1 << 20
			src, dst := hcatest.Map(t, n), hcatest.Map(t, n)
			for i := range src {
				src[i] = byte(i * 7)
			}
			ms := hcatest.Register(t, a, src, hcatest.Everything|od)
			md := hcatest.Register(t, b, dst, hcatest.Everything|od)
			require.NoError(t, y.QP.PostRecv(hca.RecvWR{ID: 1, SGE: hcatest.SGE(md, dst)}))
			require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.Send, SGE: hcatest.SGE(ms, src)}))
			hcatest.Want(t, x.SendCQ, 2, hca.WCSuccess)
			hcatest.Want(t, y.RecvCQ, 1, hca.WCSuccess)
			require.Equal(t, src, dst)
			clear(dst)
			require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 3, Op: hca.RDMAWrite, SGE: hcatest.SGE(ms, src[1:]), Remote: hcatest.Remote(md, dst)}))
			hcatest.Want(t, x.SendCQ, 3, hca.WCSuccess)
			require.Equal(t, src[1:], dst[:n-1])
			require.NoError(t, x.QP.PostSend(hca.SendWR{ID: 4, Op: hca.RDMARead, SGE: hcatest.SGE(ms, src[:n-1]), Remote: hcatest.Remote(md, dst)}))
			hcatest.Want(t, x.SendCQ, 4, hca.WCSuccess)
			require.Equal(t, src[:n-1], dst[:n-1])
		}
	}
}
