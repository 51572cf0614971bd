package regcache

import (
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// The benchmarks use a backend that does nothing, so that what is timed is the
// cache, and a scripted monitor for owned and foreign memory, so that the probe
// is not in it (intercept measures that).

const (
	benchLen    = 64 << 10
	benchStride = 128 << 10
)

func benchCache(b *testing.B, kind hca.MemKind) (*Cache, hca.Range, []byte) {
	cfg := Config{MaxRegions: 1 << 21, MaxBytes: math.MaxUint64}
	if kind != hca.MemHeld {
		cfg.Monitor = &scriptMonitor{kind: kind}
	}
	c, err := New(&nopBackend{}, cfg)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, c.Close()) })
	if kind == hca.MemHeld {
		mem := make([]byte, 65536*benchStride) // never touched: takes no memory
		return c, hca.RangeOf(mem), mem
	}
	return c, hca.Range{Addr: 0x7f0000000000, Len: 65536 * benchStride}, nil
}

func get(b *testing.B, c *Cache, base hca.Range, mem []byte, i uint64) *Region {
	var r *Region
	var err error
	if off := i * benchStride; mem != nil {
		r, err = c.GetBytes(mem[off:off+benchLen], hca.LocalWrite)
	} else {
		r, err = c.Get(hca.Range{Addr: base.Addr + off, Len: benchLen}, hca.LocalWrite)
	}
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// BenchmarkHit is Get and Release of a random one of n cached ranges, by one or
// more goroutines. ns/op is the time of one goroutine for one pair.
func BenchmarkHit(b *testing.B) {
	for _, kind := range []hca.MemKind{hca.MemHeld, hca.MemOwned} {
		for _, n := range []uint64{16, 1024, 65536} {
			for _, threads := range []int{1, 2} {
				b.Run(fmt.Sprintf("%v/n=%d/goroutines=%d", kind, n, threads), func(b *testing.B) {
					c, base, mem := benchCache(b, kind)
					for i := range n {
						get(b, c, base, mem, i).Release()
					}
					b.ReportAllocs()
					b.ResetTimer()
					var wg sync.WaitGroup
					for t := range threads {
						wg.Go(func() {
							x := uint32(t)*7919 + 1
							for range b.N {
								x = x*1664525 + 1013904223
								get(b, c, base, mem, uint64(x>>8)%n).Release()
							}
						})
					}
					wg.Wait()
				})
			}
		}
	}
}

// BenchmarkHitApart is two goroutines that use different Regions.
func BenchmarkHitApart(b *testing.B) {
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprintf("goroutines=%d", threads), func(b *testing.B) {
			c, base, mem := benchCache(b, hca.MemHeld)
			for i := range uint64(16) {
				get(b, c, base, mem, i).Release()
			}
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for t := range uint64(threads) {
				wg.Go(func() {
					x := uint32(t)*7919 + 1
					for range b.N {
						x = x*1664525 + 1013904223
						get(b, c, base, mem, t*8+uint64(x>>8)%8).Release()
					}
				})
			}
			wg.Wait()
		})
	}
}

// BenchmarkHitWalk is Get and Release of random pages of a Region, more pages than could
// be remembered one by one: of one that is alone, of that of 1 GiB and that of 512 MiB
// beside Regions of 17 other sizes, and of all 54 of 1 GiB among 1024.
func BenchmarkHitWalk(b *testing.B) {
	for _, w := range []struct {
		name           string
		regions        uint64
		first, through uint64 // of the Regions, and every 19th after it, which are asked for
	}{
		{"alone", 1, 0, 1}, {"widest", 19, 0, 1}, {"second", 19, 1, 1}, {"many", 1024, 0, 54},
	} {
		b.Run(w.name, func(b *testing.B) {
			c, base, _ := benchCache(b, hca.MemOwned)
			addr := base.Addr + 12345<<12 // no Region begins where a block does
			var asked []hca.Range
			for i := range w.regions {
				g := hca.Range{Addr: addr, Len: 1 << (30 - i%19)}
				r, err := c.Get(g, hca.LocalWrite)
				require.NoError(b, err)
				r.Release()
				if i%19 == w.first {
					asked = append(asked, g)
				}
				addr += g.Len + 1<<20
			}
			b.ReportAllocs()
			b.ResetTimer()
			x := uint64(1)
			for range b.N {
				x = x*6364136223846793005 + 1442695040888963407
				g := asked[x>>48%w.through]
				r, err := c.Get(hca.Range{Addr: g.Addr + x>>20&(g.Len-1)&^4095, Len: 4096}, hca.LocalWrite)
				if err != nil {
					b.Fatal(err)
				}
				r.Release()
			}
		})
	}
}
