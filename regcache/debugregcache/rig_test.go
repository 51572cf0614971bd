package debugregcache

import (
	"flag"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/internal/leaktest"
	"example.com/holdfast/regcache"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "if the change is meant: go test -update")
}

// paper is a backend that registers on paper only.
type paper struct {
	name string
	keys atomic.Uint32
}

func (b *paper) Info() regcache.BackendInfo { return regcache.BackendInfo{Name: b.name} }
func (b *paper) Register(g hca.Range, a hca.Access) (*hca.MR, error) {
	k := b.keys.Add(1)
	return &hca.MR{Range: g, Access: a, LKey: k, RKey: k}, nil
}
func (b *paper) Deregister(*hca.MR) error { return nil }

// newCache is a cache that keeps Go heap only, closed at the end.
func newCache(t testing.TB, name string) *regcache.Cache {
	t.Helper()
	c, err := regcache.New(&paper{name: name}, regcache.Config{MaxBytes: 64 << 20, MaxRegions: 1000, SweepEvery: -1})
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			require.ErrorIs(t, err, hca.ErrClosed)
		}
	})
	return c
}

// use gets b n times.
func use(t testing.TB, c *regcache.Cache, b []byte, n int) {
	t.Helper()
	for range n {
		r, err := c.GetBytes(b, hca.LocalWrite)
		require.NoError(t, err)
		r.Release()
	}
}
