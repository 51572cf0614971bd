package regcache

import (
	"math"
	"time"
)

// tick is a moment of the cache's clock, in sixteenths of a second: as exact as
// an age has to be that a person reads, and small enough for a gap in the cold
// part of a Region. After eight years it stands still.
type tick uint32

const tickLength = time.Second / 16

func tickOf(d time.Duration) tick { return tick(min(d/tickLength, math.MaxUint32)) }

func (t tick) since(now time.Duration) time.Duration {
	return max(now-time.Duration(t)*tickLength, 0)
}
