package regcache

import (
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// wordRig is a cache over owned memory in which every stretch of 16 pages has a
// word of its own.
func wordRig(t *testing.T, cfg Config) (*Cache, *scriptMonitor, func(page uint64) *atomic.Uint64) {
	words := map[uint64]*atomic.Uint64{}
	c, _, m := rig(t, hca.MemOwned, cfg)
	word := func(page uint64) *atomic.Uint64 {
		if words[page/16] == nil {
			words[page/16] = &atomic.Uint64{}
			words[page/16].Store(7 * hca.CounterStep) // it has counted before the cache knew it
		}
		return words[page/16]
	}
	m.word = func(g hca.Range) *atomic.Uint64 { return word((g.Addr - at(0, 1).Addr) / pg) }
	return c, m, word
}

// The end of other memory, counted, uncounted or under way, sends no hit on
// memory with a word of its own to the slow path.
func TestWordsKeepOthersAway(t *testing.T) {
	c, m, word := wordRig(t, Config{})
	mustGet(t, c, at(0, 1), 0).Release()
	mustGet(t, c, at(16, 1), 0).Release()
	hit := func(page uint64) bool {
		r := c.hit(at(page, 1).Addr, at(page, 1).End(), 0, maxProbes)
		if r != nil {
			r.Release()
		}
		return r != nil
	}
	require.True(t, hit(0) && hit(16))
	m.put(at(16, 1))
	word(16).Add(hca.CounterStep) // nobody applies
	require.True(t, hit(0))
	require.False(t, hit(16), "its own was counted")
	m.counter.Add(hca.CounterStep + 1) // an event that nobody applies, and one under way
	require.True(t, hit(0), "the monitor's counter is unsettled, and it does not matter here")
	m.counter.Add(^uint64(0))
	word(0).Add(1)
	require.False(t, hit(0), "its own is unsettled")
	word(0).Add(^uint64(0))
	require.True(t, hit(0))
	before := c.Stats().Misses
	mustGet(t, c, at(16, 1), 0).Release()
	require.Equal(t, before+1, c.Stats().Misses, "the end of it was applied")
	mustGet(t, c, at(0, 1), 0).Release()
	require.Equal(t, before+1, c.Stats().Misses)
}

// A View and a batch look at the same words.
func TestWordsOfViewsAndBatches(t *testing.T) {
	c, m, word := wordRig(t, Config{})
	v, err := c.NewView("endpoint")
	require.NoError(t, err)
	for _, page := range []uint64{0, 16} {
		r, err := v.Get(at(page, 1), 0)
		require.NoError(t, err)
		v.Release(r)
	}
	out := make([]*Region, 2)
	both := []hca.Range{at(0, 1), at(16, 1)}
	require.True(t, c.hitBatch(both, 0, out))
	out[0].Release()
	out[1].Release()
	misses := c.Stats().Misses
	m.event(at(16, 1))
	require.False(t, c.hitBatch(both, 0, out))
	r, err := v.Get(at(0, 1), 0)
	require.NoError(t, err)
	v.Release(r)
	require.Equal(t, misses, c.Stats().Misses)
	r, err = v.Get(at(16, 1), 0)
	require.NoError(t, err)
	v.Release(r)
	require.Equal(t, misses+1, c.Stats().Misses)
	word(0).Add(1) // unsettled: nothing is proved, so nothing is kept
	r, err = v.Get(at(0, 1), 0)
	require.NoError(t, err)
	require.Equal(t, hca.UnkeptUnsettled, r.UsedOnce())
	v.Release(r)
	word(0).Add(^uint64(0))
	require.NoError(t, v.Close())
}

// A registration is not published while its own word says that something
// happens, and is while only the monitor's does.
func TestWordsDecideWhatIsPublished(t *testing.T) {
	c, m, word := wordRig(t, Config{})
	m.counter.Add(1)
	r := mustGet(t, c, at(0, 1), 0)
	require.Equal(t, hca.KeptAllRight, r.UsedOnce())
	r.Release()
	m.counter.Add(^uint64(0))
	word(16).Add(1)
	r = mustGet(t, c, at(16, 1), 0)
	require.Equal(t, hca.UnkeptUnsettled, r.UsedOnce())
	r.Release()
	word(16).Add(^uint64(0))
}

// More words than the cache looks at: the rest is counted by the monitor's.
func TestMoreWordsThanPlaces(t *testing.T) {
	c, m, _ := wordRig(t, Config{})
	const n = 2 * maxWords
	for i := range uint64(n) {
		mustGet(t, c, at(i*16, 1), 0).Release()
	}
	c.mu.Lock()
	require.Equal(t, maxWords, c.numWords)
	c.mu.Unlock()
	for i := range uint64(n) {
		m.event(at(i*16, 1))
		misses := c.Stats().Misses
		mustGet(t, c, at(i*16, 1), 0).Release()
		require.Equal(t, misses+1, c.Stats().Misses, "word %d", i)
	}
}

// What hits read lies on lines that nobody else writes.
func TestLinesOfAHit(t *testing.T) {
	require.EqualValues(t, 128, unsafe.Sizeof(word{}))
	var x index
	require.GreaterOrEqual(t, unsafe.Offsetof(x.used)-unsafe.Offsetof(x.classes), uintptr(120))
	var c Cache
	require.GreaterOrEqual(t, unsafe.Offsetof(c.made)-unsafe.Offsetof(c.cfg), unsafe.Sizeof(c.cfg)+128)
}
