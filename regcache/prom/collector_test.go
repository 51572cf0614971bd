package prom

import (
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/regcache"
	"example.com/holdfast/regcache/internal/figures"
)

// paper is a backend that registers on paper only.
type paper struct{ keys atomic.Uint32 }

func (b *paper) Info() regcache.BackendInfo {
	return regcache.BackendInfo{Name: `pin on "mlx5_0"` + "\n"}
}
func (b *paper) Register(g hca.Range, a hca.Access) (*hca.MR, error) {
	k := b.keys.Add(1)
	return &hca.MR{Range: g, Access: a, LKey: k, RKey: k}, nil
}
func (b *paper) Deregister(*hca.MR) error { return nil }

func newCache(t testing.TB, cfg regcache.Config) *regcache.Cache {
	t.Helper()
	cfg.SweepEvery = -1
	c, err := regcache.New(&paper{}, cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			require.ErrorIs(t, err, hca.ErrClosed)
		}
	})
	return c
}

func use(t testing.TB, c *regcache.Cache, b []byte, n int) {
	t.Helper()
	for range n {
		r, err := c.GetBytes(b, hca.LocalWrite)
		require.NoError(t, err)
		r.Release()
	}
}

// What is scraped is what happened, cache by cache, in the text that Prometheus
// reads.
func TestCollect(t *testing.T) {
	a, b := newCache(t, regcache.Config{MaxBytes: 1 << 20, MaxRegions: 10}), newCache(t, regcache.Config{MaxBytes: math.MaxUint64, MaxRegions: 10})
	buf := make([]byte, 64<<10)
	use(t, a, buf, 5)
	once, err := a.Get(hca.Range{Addr: 1 << 40, Len: 8192}, 0)
	require.NoError(t, err)
	defer once.Release()
	c := New(map[string]*regcache.Cache{"a": a, "b": b})
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP holdfast_regcache_hits_total Gets answered from the index.
# TYPE holdfast_regcache_hits_total counter
holdfast_regcache_hits_total{cache="a"} 4
holdfast_regcache_hits_total{cache="b"} 0
# HELP holdfast_regcache_misses_total Gets that registered.
# TYPE holdfast_regcache_misses_total counter
holdfast_regcache_misses_total{cache="a"} 2
holdfast_regcache_misses_total{cache="b"} 0
# HELP holdfast_regcache_pinned_bytes bytes pinned by all registrations.
# TYPE holdfast_regcache_pinned_bytes gauge
holdfast_regcache_pinned_bytes{cache="a"} 73728
holdfast_regcache_pinned_bytes{cache="b"} 0
# HELP holdfast_regcache_max_pinned_bytes limit: bytes that kept registrations pin.
# TYPE holdfast_regcache_max_pinned_bytes gauge
holdfast_regcache_max_pinned_bytes{cache="a"} 1.048576e+06
holdfast_regcache_max_pinned_bytes{cache="b"} +Inf
# HELP holdfast_regcache_registered registrations, those in use once and those dying too.
# TYPE holdfast_regcache_registered gauge
holdfast_regcache_registered{cache="a"} 2
holdfast_regcache_registered{cache="b"} 0
# HELP holdfast_regcache_info What registers and what tells that memory goes away.
# TYPE holdfast_regcache_info gauge
holdfast_regcache_info{backend="pin on \"mlx5_0\"\n",cache="a",monitor="none: only Go heap given to GetBytes is kept"} 1
holdfast_regcache_info{backend="pin on \"mlx5_0\"\n",cache="b",monitor="none: only Go heap given to GetBytes is kept"} 1
`), prefix+"hits_total", prefix+"misses_total", prefix+"pinned_bytes", prefix+"max_pinned_bytes", prefix+"registered", prefix+"info"))

	reasons := testutil.CollectAndCount(c, prefix+"used_once_total")
	require.Equal(t, 2*(int(hca.NumUnkept)-1), reasons, "each reason from the start, so that its rate is known")
	require.NoError(t, testutil.CollectAndCompare(New(map[string]*regcache.Cache{"a": a}), strings.NewReader(`
# HELP holdfast_regcache_used_once_total Regions that were used once and not kept, by reason.
# TYPE holdfast_regcache_used_once_total counter
holdfast_regcache_used_once_total{cache="a",reason="discard_seen"} 0
holdfast_regcache_used_once_total{cache="a",reason="limit"} 0
holdfast_regcache_used_once_total{cache="a",reason="no_source"} 1
holdfast_regcache_used_once_total{cache="a",reason="not_mapped"} 0
holdfast_regcache_used_once_total{cache="a",reason="refused"} 0
holdfast_regcache_used_once_total{cache="a",reason="unsettled"} 0
`), prefix+"used_once_total"))
}

// Prometheus's own linter finds nothing, and a strict registry accepts what is
// collected as what was described.
func TestRegistryAndLint(t *testing.T) {
	caches := map[string]*regcache.Cache{"a": newCache(t, regcache.Config{}), "": newCache(t, regcache.Config{})}
	c := New(caches)
	problems, err := testutil.CollectAndLint(c)
	require.NoError(t, err)
	require.Empty(t, problems)
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(c))
	delete(caches, "a") // the map is the caller's again
	families, err := r.Gather()
	require.NoError(t, err)
	require.Len(t, families, len(figures.All())+2)
	for _, f := range families {
		require.Zero(t, len(f.GetMetric())%2, f.GetName())
	}
}

func TestNewRefusesNil(t *testing.T) {
	require.Panics(t, func() { New(map[string]*regcache.Cache{"x": nil}) })
	require.Zero(t, testutil.CollectAndCount(New(nil)))
}

// Scrapes while the cache works, and after it was closed.
func TestConcurrentScrapes(t *testing.T) {
	a := newCache(t, regcache.Config{})
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(New(map[string]*regcache.Cache{"a": a})))
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { use(t, a, make([]byte, 64<<10), 2000) })
		wg.Go(func() {
			for range 50 {
				if _, err := r.Gather(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, a.Close())
	require.NoError(t, testutil.GatherAndCompare(r, strings.NewReader(`
# HELP holdfast_regcache_hits_total Gets answered from the index.
# TYPE holdfast_regcache_hits_total counter
holdfast_regcache_hits_total{cache="a"} 3998
`), prefix+"hits_total"))
}
