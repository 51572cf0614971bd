package regcache

import "testing"

// A program that once failed, as it was printed: the model did not know that two
// Gets of one call can find a Region on its way out, or gone. See
// cacheModel.replaces.
func TestModelFound_BatchReplacesBetweenItsGets(t *testing.T) {
	replayModel(t, modelProgram{
		regions: 100, pages: 1000, keys: 4, adapters: 1, omit: 0,
		steps: []modelStep{
			{stViewBytes, 0, 0, 0, 0},
			{stBatch, 161, 98, 104, 0},
			{stBatch, 169, 62, 0, 1},
		},
	})
}
