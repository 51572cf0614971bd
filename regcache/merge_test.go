package regcache

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// C31: a device with 1,000 keys and 100,000 buffers side by side in one mapping:
// no error, few Regions, and each page registered a handful of times, in
// whatever order the buffers come.
func TestC31_Neighbours(t *testing.T) {
	n := uint64(100_000)
	if debugging {
		n /= 5
	}
	orders := map[string]func(i uint64) uint64{
		"ascending":  func(i uint64) uint64 { return i },
		"descending": func(i uint64) uint64 { return n - 1 - i },
		"shuffled":   nil,
	}
	perm := rand.New(rand.NewPCG(1, 2)).Perm(int(n))
	orders["shuffled"] = func(i uint64) uint64 { return uint64(perm[i]) }
	for name, order := range orders {
		t.Run(name, func(t *testing.T) {
			c, b, _ := rig(t, hca.MemForeign, Config{MaxBytes: 1 << 40, MaxMerge: 1 << 30})
			var pages uint64
			b.onRegister = func(g hca.Range, _ hca.Access) error {
				if live, _, _ := b.counts(); live >= 1000 {
					return hca.ErrNoKeys
				}
				pages += g.Len / pg
				return nil
			}
			for i := range n {
				mustGet(t, c, at(order(i), 1), 0).Release()
			}
			quiet(t, c)
			live, made, _ := b.counts()
			t.Logf("%d registrations of %.1f pages a buffer, %d live, %d evictions", made, float64(pages)/float64(n), live, c.Stats().Evictions)
			require.LessOrEqual(t, pages, 12*n, "each page is registered a few times")
			if name != "shuffled" {
				require.LessOrEqual(t, live, 6*(mergeRun-1)+1)
				// None, were it not for the reaper, which may be far behind on a busy machine.
				require.Less(t, c.Stats().Evictions, n/100)
			}
		})
	}
}

// However many buffers lie in a page, they share its registration.
func TestSubPageBuffers(t *testing.T) {
	c, b, _ := rig(t, hca.MemForeign, Config{MaxMerge: 1})
	for i := range uint64(640) {
		mustGet(t, c, hca.Range{Addr: at(0, 1).Addr + i*64, Len: 64}, 0).Release()
	}
	_, made, _ := b.counts()
	require.Equal(t, 10, made)
	h, err := New(b, Config{})
	require.NoError(t, err)
	buf := make([]byte, 64*64)
	for i := range 64 {
		r, err := h.GetBytes(buf[i*64:][:64], 0)
		require.NoError(t, err)
		r.Release()
	}
	require.LessOrEqual(t, h.Stats().Registrations, uint64(2), "of one or two pages")
	require.NoError(t, h.Close())
}

func TestMergeOff(t *testing.T) {
	c, b, _ := rig(t, hca.MemForeign, Config{MaxMerge: 1})
	for i := range uint64(100) {
		mustGet(t, c, at(i, 1), 0).Release()
	}
	_, made, _ := b.counts()
	require.Equal(t, 100, made)
	require.Equal(t, 100, c.Stats().Regions)
}

// A merge that fails, or whose other parts go away while it is made, leaves the
// caller with exactly what he asked for, and kept.
func TestC29_MergeFails(t *testing.T) {
	fill := func(t *testing.T) (*Cache, *nopBackend, *scriptMonitor) {
		c, b, m := rig(t, hca.MemForeign, Config{})
		for i := range uint64(mergeRun - 1) {
			mustGet(t, c, at(i, 1), 0).Release()
		}
		return c, b, m
	}
	last := at(mergeRun-1, 1)
	t.Run("refused", func(t *testing.T) {
		c, b, _ := fill(t)
		b.onRegister = func(g hca.Range, _ hca.Access) error {
			if g.Len > pg {
				return hca.ErrBadAddress
			}
			return nil
		}
		r := mustGet(t, c, last, 0)
		require.Equal(t, last, r.Range())
		require.Equal(t, hca.KeptAllRight, r.UsedOnce())
		r.Release()
		require.Equal(t, mergeRun, c.Stats().Regions)
	})
	t.Run("neighbour goes", func(t *testing.T) {
		c, b, m := fill(t)
		b.onRegister = func(g hca.Range, _ hca.Access) error {
			if g.Len > pg {
				m.event(at(2, 1))
			}
			return nil
		}
		r := mustGet(t, c, last, 0)
		require.Equal(t, last, r.Range())
		require.Equal(t, hca.KeptAllRight, r.UsedOnce())
		r.Release()
		c.mu.Lock()
		require.Nil(t, c.index.findLocked(at(2, 1), 0))
		c.mu.Unlock()
	})
	t.Run("something is going", func(t *testing.T) {
		c, _, m := fill(t)
		m.underWay.Store(true)
		r := mustGet(t, c, last, 0)
		require.Equal(t, last, r.Range(), "of a neighbour, for all that is known")
		require.Equal(t, hca.KeptAllRight, r.UsedOnce())
		m.event(at(2, 1))
		m.underWay.Store(false)
		r.Release()
		quiet(t, c)
		require.Equal(t, mergeRun-1, c.Stats().Regions, "its part, and no other, is gone")
	})
	t.Run("access is kept", func(t *testing.T) {
		c, _, _ := rig(t, hca.MemForeign, Config{})
		for i := range uint64(mergeRun - 1) {
			mustGet(t, c, at(i, 1), []hca.Access{0, hca.LocalWrite}[i%2]|hca.RemoteRead).Release()
		}
		other := mustGet(t, c, last, hca.LocalWrite)
		require.Equal(t, last, other.Range(), "it gives peers other rights: no merge")
		other.Release()
		c.Invalidate(last)
		r := mustGet(t, c, last, hca.RemoteRead)
		require.Equal(t, at(0, mergeRun), r.Range())
		require.Equal(t, hca.LocalWrite|hca.RemoteRead, r.Access())
		r.Release()
		require.Equal(t, 1, c.Stats().Regions)
	})
}
