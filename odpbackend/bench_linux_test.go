package odpbackend_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
	"example.com/holdfast/hcasim"
	"example.com/holdfast/odpbackend"
)

// benchRig is withPrefetcher without a child, for benchmarks.
func benchRig(b *testing.B) *rig {
	fab, err := hcasim.NewFabric(hcasim.FabricConfig{})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, fab.Close()) })
	r := &rig{}
	for _, d := range []**hcasim.Device{&r.a, &r.b} {
		*d, err = hcasim.Open(hcasim.Live{Fabric: fab})
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, (*d).Close()) })
	}
	if !r.a.Attr().ODP.Prefetch {
		b.Skip("the kernel has no MADV_POPULATE_READ (Linux 5.14)")
	}
	r.p, err = odpbackend.NewPrefetcher(r.a, odpbackend.PrefetchConfig{})
	require.NoError(b, err)
	r.q, err = odpbackend.NewQueue(8)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, r.p.Close()) })
	return r
}

func (r *rig) prefetch(b *testing.B, s hca.SGE) {
	if err := r.p.Post(r.q, 1, s, true); err != nil {
		b.Fatal(err)
	}
	if wc := hcatest.Next(b, r.q); wc.Err != nil {
		b.Fatal(wc.Err)
	}
}

// What a request for memory that is warm costs, posted and polled.
func BenchmarkPrefetchOfWarmMemory(b *testing.B) {
	for _, n := range []int{4 << 10, 64 << 10, 4 << 20} {
		b.Run(hca.Bytes(n).String(), func(b *testing.B) {
			r := benchRig(b)
			m := hcatest.Map(b, n)
			s := hcatest.SGE(hcatest.Register(b, r.a, m, hcatest.Everything|hca.OnDemand), m)
			r.prefetch(b, s)
			b.ReportAllocs()
			var wc [1]hca.WC
			for b.Loop() {
				if err := r.p.Post(r.q, 1, s, true); err != nil {
					b.Fatal(err)
				}
				if k, err := r.q.Poll(wc[:]); k != 1 || err != nil {
					b.Fatal(k, err)
				}
			}
		})
	}
}

// What the first transfer into memory costs: untouched, prefetched before, or
// used before. The prefetch itself is timed apart.
func BenchmarkFirstTransfer(b *testing.B) {
	for _, n := range []int{4 << 10, 64 << 10, 4 << 20} {
		for _, how := range []string{"untouched", "prefetched", "used", "prefetch alone"} {
			b.Run(hca.Bytes(n).String()+"/"+how, func(b *testing.B) {
				r := benchRig(b)
				m, far := hcatest.Map(b, n), hcatest.Map(b, n)
				s := hcatest.SGE(hcatest.Register(b, r.a, m, hcatest.Everything|hca.OnDemand), m)
				remote := hcatest.Remote(hcatest.Register(b, r.b, far, hcatest.Everything), far)
				x, _ := hcatest.Connect(b, r.a, r.b, hca.QPConfig{})
				read := func() {
					if err := x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMARead, SGE: s, Remote: remote}); err != nil {
						b.Fatal(err)
					}
					hcatest.Want(b, x.SendCQ, 1, hca.WCSuccess)
				}
				read()
				for range b.N {
					if how != "used" {
						b.StopTimer()
						if err := unix.Madvise(m, unix.MADV_DONTNEED); err != nil {
							b.Fatal(err)
						}
						r.p.Forget(s.Range())
						if how == "prefetched" {
							r.prefetch(b, s)
						}
						b.StartTimer()
					}
					if how == "prefetch alone" {
						r.prefetch(b, s)
						continue
					}
					read()
				}
			})
		}
	}
}
