package hcasim

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A place that was given back is the last to be handed out again, and then
// under another key, for as long as there are generations.
func TestTable(t *testing.T) {
	const size = 4
	tab := newTable(false, size, keyGenMask-2) // soon around
	seen := map[uint32]bool{}
	var held []uint32
	for range size {
		i, k, ok := tab.take()
		require.True(t, ok)
		require.NotZero(t, k)
		require.Equal(t, i, keyIndex(k))
		seen[k] = true
		held = append(held, i)
	}
	_, _, ok := tab.take()
	require.False(t, ok)
	for round := range size * (keyGenMask - 1) {
		oldest := held[0]
		tab.giveBack(oldest)
		i, k, ok := tab.take()
		require.True(t, ok)
		require.Equal(t, oldest, i)
		require.False(t, seen[k], "key %#x again in round %d", k, round)
		require.NotZero(t, k&keyGenMask)
		seen[k] = true
		held = append(held[1:], i)
	}
	tab.giveBack(held[1])
	tab.giveBack(held[0])
	i, _, _ := tab.take()
	require.Equal(t, held[1], i, "first back, first out")
}

func TestKeys(t *testing.T) {
	for _, index := range []uint32{0, 1, maxPinned - 1, maxOnDemandMR - 1} {
		for _, od := range []bool{false, true} {
			k := makeKey(od, index, keyGenMask)
			require.Equal(t, index, keyIndex(k))
			require.Equal(t, od, k&keyOnDemand != 0)
			require.EqualValues(t, keyGenMask, k&keyGenMask)
		}
	}
}
