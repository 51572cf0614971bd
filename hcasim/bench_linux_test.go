package hcasim

import (
	"fmt"
	"testing"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
	"github.com/stretchr/testify/require"
)

var forms = []struct {
	name string
	cfg  FabricConfig
}{{"full", FabricConfig{}}, {"lesser", FabricConfig{Lesser: true}}}

// Register and Deregister of touched memory.
func BenchmarkRegister(b *testing.B) {
	for _, form := range forms {
		for _, n := range []int{4 << 10, 64 << 10, 1 << 20, 16 << 20} {
			b.Run(fmt.Sprintf("%s/%s", form.name, hca.Bytes(n)), func(b *testing.B) {
				d, _ := pair(b, form.cfg)
				m := hcatest.Map(b, n)
				for i := 0; i < n; i += page {
					m[i] = 1
				}
				r := hca.RangeOf(m)
				b.ReportAllocs()
				for b.Loop() {
					mr, err := d.Register(r, hcatest.Everything)
					if err != nil {
						b.Fatal(err)
					}
					if err := d.Deregister(mr); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
	b.Run("on demand", func(b *testing.B) {
		d, _ := pair(b, FabricConfig{})
		r := hca.RangeOf(hcatest.Map(b, 1<<20))
		b.ReportAllocs()
		for b.Loop() {
			mr, err := d.Register(r, hcatest.Everything|hca.OnDemand)
			if err != nil {
				b.Fatal(err)
			}
			if err := d.Deregister(mr); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// One message, from post to both completions.
func BenchmarkTransfer(b *testing.B) {
	for _, form := range forms {
		for _, kind := range []struct {
			name   string
			access hca.Access
		}{{"fixed", 0}, {"plain", hca.OnDemand}} {
			for _, op := range []struct {
				name string
				op   hca.Op
			}{{"send", hca.Send}, {"write", hca.RDMAWrite}} {
				for _, n := range []int{64, 64 << 10, 4 << 20} {
					b.Run(fmt.Sprintf("%s/%s/%s/%s", form.name, kind.name, op.name, hca.Bytes(n)), func(b *testing.B) {
						benchTransfer(b, form.cfg, kind.access, op.op, n)
					})
				}
			}
		}
	}
}

func benchTransfer(b *testing.B, cfg FabricConfig, access hca.Access, op hca.Op, n int) {
	da, db := pair(b, cfg)
	x, y := hcatest.Connect(b, da, db, hca.QPConfig{})
	src, dst := hcatest.Map(b, n), hcatest.Map(b, n)
	for i := range src {
		src[i], dst[i] = 1, 2
	}
	ms, md := hcatest.Register(b, da, src, hcatest.Everything|access), hcatest.Register(b, db, dst, hcatest.Everything|access)
	send := hca.SendWR{Op: op, SGE: hcatest.SGE(ms, src), Remote: hcatest.Remote(md, dst)}
	recv := hca.RecvWR{SGE: hcatest.SGE(md, dst)}
	var wc [4]hca.WC
	take := func(cq hca.CQ) {
		if k, err := cq.Poll(wc[:]); k != 1 || err != nil || wc[0].Status != hca.WCSuccess {
			b.Fatal(k, err, wc[0].Status)
		}
	}
	b.SetBytes(int64(n))
	b.ReportAllocs()
	for b.Loop() {
		if op == hca.Send {
			if err := y.QP.PostRecv(recv); err != nil {
				b.Fatal(err)
			}
		}
		if err := x.QP.PostSend(send); err != nil {
			b.Fatal(err)
		}
		take(x.SendCQ)
		if op == hca.Send {
			take(y.RecvCQ)
		}
	}
}

// The hot paths allocate nothing.
func TestTransferAllocatesNothing(t *testing.T) {
	for _, form := range forms {
		a, b := pair(t, form.cfg)
		x, y := hcatest.Connect(t, a, b, hca.QPConfig{})
		m := hcatest.Map(t, 2*page)
		ma := hcatest.Register(t, a, m, hcatest.Everything)
		mb := hcatest.Register(t, b, m, hcatest.Everything|hca.OnDemand)
		var wc [4]hca.WC
		require.Zero(t, testing.AllocsPerRun(100, func() {
			ok := y.QP.PostRecv(hca.RecvWR{SGE: hcatest.SGE(mb, m[page:])}) == nil &&
				x.QP.PostSend(hca.SendWR{Op: hca.Send, SGE: hcatest.SGE(ma, m[:page])}) == nil &&
				x.QP.PostSend(hca.SendWR{Op: hca.RDMARead, SGE: hcatest.SGE(ma, m[:page]), Remote: hcatest.Remote(mb, m[page:])}) == nil
			n, err := x.SendCQ.Poll(wc[:])
			k, err2 := y.RecvCQ.Poll(wc[:])
			if !ok || n != 2 || k != 1 || err != nil || err2 != nil {
				t.Fatal(ok, n, k, err, err2)
			}
		}))
	}
}
