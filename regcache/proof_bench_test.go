package regcache

import (
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// bareBackend registers nothing and remembers nothing, so that what a benchmark
// sees is the cache. Its registrations come from a slice that was there before,
// or are made one by one like those of a device.
type bareBackend struct {
	made  uint32
	ready []hca.MR // used in turn; empty: each is made anew
}

func (b *bareBackend) Info() BackendInfo { return BackendInfo{Name: "bare"} }

func (b *bareBackend) Register(g hca.Range, a hca.Access) (*hca.MR, error) {
	b.made++
	mr := new(hca.MR)
	if len(b.ready) > 0 {
		mr = &b.ready[int(b.made)%len(b.ready)]
	}
	*mr = hca.MR{Range: g, Access: a, LKey: b.made, RKey: b.made}
	return mr, nil
}

func (b *bareBackend) Deregister(*hca.MR) error { return nil }

// proofCache is a cache of any size that merges nothing and sweeps nothing.
func proofCache(b *testing.B, ready int, cfg Config) (*Cache, *scriptMonitor) {
	m := &scriptMonitor{kind: hca.MemOwned}
	cfg.Monitor, cfg.SweepEvery, cfg.MaxMerge = m, -1, 1
	if cfg.MaxRegions == 0 {
		cfg.MaxRegions = 1 << 22
	}
	cfg.MaxBytes = math.MaxUint64
	c, err := New(&bareBackend{ready: make([]hca.MR, ready)}, cfg)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, c.Close()) })
	return c, m
}

func fillCache(b *testing.B, c *Cache, n uint64) {
	for i := range n {
		r, err := c.Get(at(i*2, 1), 0)
		if err != nil {
			b.Fatal(err)
		}
		r.Release()
	}
}

// BenchmarkMiss is what the cache adds to a registration: Get of something new
// and Release, over a backend that costs nothing. "kept" grows the index,
// "evicting" has a full cache of n Regions and gives one back for each, "once"
// is of memory that cannot be kept.
func BenchmarkMiss(b *testing.B) {
	miss := func(b *testing.B, c *Cache, first uint64) {
		b.ReportAllocs()
		b.ResetTimer()
		for i := range uint64(b.N) {
			r, err := c.Get(at((first+i)*2, 1), 0)
			if err != nil {
				b.Fatal(err)
			}
			r.Release()
		}
	}
	b.Run("kept", func(b *testing.B) {
		c, _ := proofCache(b, 1, Config{})
		miss(b, c, 0)
	})
	for _, n := range []int{16, 1024, 65536} {
		b.Run(fmt.Sprintf("evicting/n=%d", n), func(b *testing.B) {
			c, _ := proofCache(b, 1, Config{MaxRegions: n})
			fillCache(b, c, uint64(n))
			miss(b, c, uint64(n))
		})
	}
	b.Run("once", func(b *testing.B) {
		c, m := proofCache(b, 1, Config{})
		m.kind = hca.MemUnknown
		miss(b, c, 0)
	})
}

// benchCounts are how many Regions the benchmarks of events keep.
var benchCounts = []uint64{16, 1024, 65536, 1_000_000}

// BenchmarkInvalidate is the end of one Region among n, from its event to its
// deregistration, with the Get that brings it back outside the time.
func BenchmarkInvalidate(b *testing.B) {
	for _, n := range benchCounts {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			c, m := proofCache(b, 1, Config{})
			fillCache(b, c, n)
			b.ReportAllocs()
			b.ResetTimer()
			batch := min(n, 4096) // those that go before the clock stops and they come back
			for i := uint64(0); i < uint64(b.N); i += batch {
				todo := min(batch, uint64(b.N)-i)
				which := func(k uint64) hca.Range { return at((i+k)*7919%n*2, 1) }
				for k := range todo {
					c.mu.Lock() // or the reaper, awake because of the one before, takes it
					m.events = m.events[:0]
					m.put(which(k))
					m.counter.Add(hca.CounterStep)
					m.rewind(c)
					c.applyLocked()
					dead := c.dead
					c.dead = nil
					c.mu.Unlock()
					c.deregister(dead)
					if len(dead) != 1 {
						b.Fatalf("%d Regions went", len(dead))
					}
				}
				b.StopTimer()
				for k := range todo {
					r, err := c.Get(which(k), 0)
					if err != nil {
						b.Fatal(err)
					}
					r.Release()
				}
				b.StartTimer()
			}
		})
	}
}

// rewind lets the cache's feed begin again with the first event of the script.
// Cache.mu is held.
func (m *scriptMonitor) rewind(c *Cache) { c.feed.(*scriptFeed).at = 0 }

// BenchmarkEventElsewhere is an event that touches none of n Regions: of one
// page, and of a gigabyte, which is more blocks than it is worth to look at one
// by one when there are few Regions.
func BenchmarkEventElsewhere(b *testing.B) {
	for _, pages := range []uint64{1, 1 << 18} {
		for _, n := range benchCounts {
			b.Run(fmt.Sprintf("pages=%d/n=%d", pages, n), func(b *testing.B) {
				c, m := proofCache(b, 1, Config{})
				fillCache(b, c, n)
				m.events = nil
				m.put(at(2*n+100, pages))
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					c.mu.Lock()
					m.rewind(c)
					m.counter.Add(hca.CounterStep)
					c.applyLocked()
					c.mu.Unlock()
				}
			})
		}
	}
}

// BenchmarkHeapPerIdleRegion says how many bytes of heap the cache takes for each
// of 10^6 Regions that nobody uses: with its index, its order of recency and its
// Region, without the backend's own registration (cacheB/region; the goal is at
// most 200) and with one of hca's size (totalB/region).
func BenchmarkHeapPerIdleRegion(b *testing.B) {
	const n = 1_000_000
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return float64(s.HeapAlloc)
	}
	for range b.N {
		for name, ready := range map[string]int{"cacheB/region": 1, "totalB/region": 0} {
			c, _ := proofCache(b, ready, Config{})
			before := heap()
			fillCache(b, c, n)
			b.ReportMetric((heap()-before)/n, name)
			require.Equal(b, n, c.Stats().Regions)
			c.Flush()
		}
	}
}
