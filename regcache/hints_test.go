package regcache

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// A small range inside a large Region is found by the hint once it was found, and a
// hint to what has left look-up is gone with the first who sees it.
func TestHints(t *testing.T) {
	c, b, m := rig(t, hca.MemOwned, Config{MaxMerge: 1})
	for i := range uint64(6) { // Regions of many sizes, so that there are classes between
		mustGet(t, c, at(100000+i*1000, 1<<i), 0).Release()
	}
	big := mustGet(t, c, at(0, 1000), 0)
	big.Release()
	inside := at(600, 1)
	hint := c.index.hints.at(inside.Addr)
	require.Nil(t, hint.Load())
	require.Same(t, big, mustGet(t, c, inside, 0))
	big.Release()
	require.Same(t, big, hint.Load())
	require.Same(t, big, c.index.hint(inside.Addr, inside.End(), 0))
	require.Nil(t, c.index.hint(inside.Addr, at(1000, 1).End(), 0), "longer than it")
	require.Nil(t, c.index.hint(inside.Addr, inside.End(), hca.RemoteWrite), "more than it allows")
	misses := c.Stats().Misses
	require.Same(t, big, mustGet(t, c, inside, 0))
	big.Release()
	require.Equal(t, misses, c.Stats().Misses)

	m.event(inside)
	r := mustGet(t, c, inside, 0)
	require.NotSame(t, big, r, "its memory has gone")
	r.Release()
	require.Equal(t, misses+1, c.Stats().Misses)
	require.Nil(t, c.index.hint(inside.Addr, inside.End(), 0), "dead")
	require.Nil(t, hint.Load(), "and taken out by who saw it")
	quiet(t, c)
	_, _, twice := b.counts()
	require.Zero(t, twice)
}
