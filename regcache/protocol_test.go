package regcache

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// These scripts put an event at each place of a hit where it could slip in. Each
// passes with the whole protocol and fails with the part of it that is there for
// this place left out, which is the proof that the part is needed and that it is
// there. (The same against the kernel is in coherence_test.go.)

// A script takes memory away at some moment around one Get of a cached Region
// and reports whether the Get answered with the old registration although the
// memory was gone before the Get's last look.
type script struct {
	name string
	kind hca.MemKind
	part omission
	run  func(c *Cache, m *scriptMonitor) (stale bool)
}

func scripts() []script {
	g := at(0, 1)
	// look does one try of the lock-free path and gives back what it got.
	look := func(c *Cache) bool {
		r := c.hit(g.Addr, g.End(), 0, maxProbes)
		if r == nil {
			return false
		}
		r.Release()
		return true
	}
	return []script{
		{"counted and not applied", hca.MemOwned, omitApplied, func(c *Cache, m *scriptMonitor) bool {
			m.put(g)
			m.counter.Add(hca.CounterStep) // nobody has woken the reaper
			return look(c)
		}},
		{"read from the kernel and not yet counted", hca.MemForeign, omitParity, func(c *Cache, m *scriptMonitor) bool {
			m.counter.Add(1) // the reader is between read and ring: the kernel lets the unmapper go
			stale := look(c)
			m.put(g)
			m.counter.Add(hca.CounterStep - 1)
			return stale
		}},
		{"gone and not yet read from the kernel", hca.MemForeign, omitProbe, func(c *Cache, m *scriptMonitor) bool {
			m.underWay.Store(true)
			stale := look(c)
			m.event(g)
			m.underWay.Store(false)
			return stale
		}},
		{"gone before it was registered and not yet read from the kernel", hca.MemForeign, omitProbe, func(c *Cache, m *scriptMonitor) bool {
			m.event(g)
			m.underWay.Store(true)
			r, err := c.Get(g, 0)
			stale := err == nil && r.UsedOnce() == hca.KeptAllRight && look(c)
			r.Release()
			m.event(g)
			m.underWay.Store(false)
			return stale
		}},
		{"counted between the first look and the last", hca.MemForeign, omitSecondLook, func(c *Cache, m *scriptMonitor) bool {
			m.onProbe = func() {
				m.onProbe = nil
				m.put(g)
				m.counter.Add(hca.CounterStep) // and the probe, after it, sees nothing any more
			}
			return look(c)
		}},
	}
}

func TestProtocolNeedsEachPart(t *testing.T) {
	for _, s := range scripts() {
		t.Run(s.name, func(t *testing.T) {
			for _, omit := range []omission{0, s.part} {
				c, _, m := rig(t, s.kind, Config{})
				mustGet(t, c, at(0, 1), 0).Release()
				c.omit = omit
				require.Equal(t, omit != 0, s.run(c, m), "parts left out: %b", omit)
				c.omit = 0
				m.onProbe = nil
			}
		})
	}
}

// After each of them the event is applied by the next Get, and what it answers
// with is new.
func TestProtocolRecovers(t *testing.T) {
	for _, s := range scripts() {
		c, _, m := rig(t, s.kind, Config{})
		old := mustGet(t, c, at(0, 1), 0)
		old.Release()
		s.run(c, m)
		fresh := mustGet(t, c, at(0, 1), 0)
		require.NotSame(t, old, fresh, s.name)
		require.Equal(t, hca.KeptAllRight, fresh.UsedOnce(), s.name)
		fresh.Release()
	}
}

// A hit that is undone gives back all that it took: reference, hit, parking.
func TestUndoneHit(t *testing.T) {
	c, _, m := rig(t, hca.MemForeign, Config{})
	r := mustGet(t, c, at(0, 1), 0)
	r.Release()
	m.underWay.Store(true)
	require.Nil(t, c.hit(at(0, 1).Addr, at(0, 1).End(), 0, maxProbes))
	m.underWay.Store(false)
	w := r.state.Load()
	require.Zero(t, w&(stRefs|stHits))
	// The same while it dies: who undoes last hands it over.
	r2 := c.index.find(at(0, 1).Addr, at(0, 1).End(), 0, maxProbes)
	require.Same(t, r, r2)
	r2.state.Add(stHit + stRef) // a hit that has come as far as step 4
	m.event(at(0, 1))
	c.mu.Lock()
	c.applyLocked()
	require.Zero(t, c.usage.dying, "it has a reference")
	c.mu.Unlock()
	c.undoHit(r2)
	quiet(t, c)
	require.Zero(t, c.Stats().Registered)
	require.Zero(t, c.Stats().Hits)
}

func TestHarvestHits(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{})
	r := mustGet(t, c, at(0, 1), 0)
	r.Release()
	r.state.Add(stHitHigh - stHit) // as if hit that often
	before := c.Stats().Hits
	for range 3 {
		mustGet(t, c, at(0, 1), 0).Release()
	}
	require.Equal(t, before+3, c.Stats().Hits)
	require.Zero(t, r.state.Load()&stHitHigh)
}
