package regcache_test

import "testing"

// Programs that once failed, as they were printed. What was wrong then was the
// model, which is why they are short; a fault of the cache gets a test in words
// as well.

// Memory that grows up to a piece that was cut off the same mapping before is not
// one with it: they cannot be moved together.
func TestModelFound_GrownUpToItsOwnPiece(t *testing.T) {
	replay(t, "foreign_small_ring", 20, run{
		caches: 1, regions: 0, bytes: 0, merge: 0, sweep: 0,
		threads: [][]op{
			{
				{opMap, 0, 20, 0, 0},
				{opMoveOver, 99, 0, 0, 0},
				{opView, 1, 0, 0, 0},
				{opGrow, 49, 0, 0, 0},
				{opMoveOver, 99, 1, 0, 0},
			},
		},
	})
}

// The parts of a list need not be next to each other: one that is wider than its
// piece covers the next one too.
func TestModelFound_ListOfWideRegions(t *testing.T) {
	replay(t, "many", 20, run{
		caches: 1, regions: 0, bytes: 0, merge: 0, sweep: 0,
		threads: [][]op{
			{
				{opMapOver, 0, 3, 0, 0},
				{opBatch, 66, 38, 0, 0},
				{opList, 0, 195, 0, 0},
			},
		},
	})
}
