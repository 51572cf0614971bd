package intercept

import (
	"sync"
	"sync/atomic"
)

// repeating is goroutines that do something again and again until end.
type repeating struct {
	ended atomic.Bool
	all   sync.WaitGroup
}

// start has a goroutine do it again and again.
func (r *repeating) start(do func()) {
	r.all.Go(func() {
		for !r.ended.Load() {
			do()
		}
	})
}

// end ends all, and waits for them.
func (r *repeating) end() {
	r.ended.Store(true)
	r.all.Wait()
}
