//go:build linux && (amd64 || arm64)

package bpf

import (
	"testing"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
	"example.com/holdfast/regcache"
)

// nothing is a Backend that does nothing.
type nothing struct{}

func (nothing) Info() regcache.BackendInfo { return regcache.BackendInfo{Name: "nothing"} }
func (nothing) Register(r hca.Range, a hca.Access) (*hca.MR, error) {
	return &hca.MR{Range: r, Access: a}, nil
}
func (nothing) Deregister(*hca.MR) error { return nil }

// BenchmarkHit is Get and Release of foreign memory that is cached.
func BenchmarkHit(b *testing.B) {
	under(b, func(b *testing.B, m *intercept.Monitor) {
		if m == nil {
			b.Skip("foreign memory that nobody watches is not cached")
		}
		c, err := regcache.New(nothing{}, regcache.Config{Monitor: m})
		if err != nil {
			b.Fatal(err)
		}
		r := benchMap(b)
		done := cpu(b)
		for b.Loop() {
			reg, err := c.Get(r, hca.LocalWrite)
			if err != nil {
				b.Fatal(err)
			}
			reg.Release()
		}
		done()
		if s := c.Stats(); s.Misses > 10 {
			b.Fatalf("no hits: %+v", s)
		}
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
	})
}
