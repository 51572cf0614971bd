package regcache

import (
	"sync/atomic"

	"example.com/holdfast/hca"
)

// word is a counter of a monitor, and how far the cache has got with it. Word 0
// is the monitor's own, which counts every event. The others are those that
// hca.Watch named: each counts the events of some owned memory, so that hits on
// other owned memory are not disturbed by these.
//
// A hit reads both fields and nobody writes them while nothing ends, so a word
// has a pair of cache lines to itself (processors fetch them in pairs).
type word struct {
	counter *atomic.Uint64 // set under Cache.mu before a Region has the word's number
	// applied is the last settled value of the counter up to which every event
	// has been applied to the index. Written under Cache.mu.
	applied atomic.Uint64
	_       [112]byte
}

// maxWords is how many words a cache looks at; memory beyond is looked after by
// word 0, which is right for all.
const maxWords = 64

// settled reports whether the word has counted nothing that is not applied, and
// has no event on the way.
func (w *word) settled() bool { return w.counter.Load() == w.applied.Load() }

// setCounter makes a counter the cache's word 0. New calls it.
func (c *Cache) setCounter(counter *atomic.Uint64) {
	c.words[0].counter = counter
	c.numWords = 1
}

// wordLocked is the number of the word for memory watched so. Cache.mu is held.
//
// A word that is new to the cache begins as not applied, unless it has never
// counted anything: the next Get that needs it applies.
func (c *Cache) wordLocked(w hca.Watch) uint8 {
	if w.Counter == nil || w.Kind != hca.MemOwned {
		return 0
	}
	for i := range c.numWords {
		if c.words[i].counter == w.Counter {
			return uint8(i)
		}
	}
	if c.numWords == maxWords {
		return 0
	}
	i := c.numWords
	c.words[i].counter = w.Counter
	c.numWords++
	return uint8(i)
}

// appliedLocked reports whether every word is settled. Cache.mu is held.
func (c *Cache) appliedLocked() bool {
	for i := range c.numWords {
		if !c.words[i].settled() {
			return false
		}
	}
	return true
}
