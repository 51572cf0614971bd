package verbs

import (
	"sync"
	"sync/atomic"
)

// jobsQueued is how many posted registrations and advices may wait for a
// worker.
const jobsQueued = 1024

// workers carry out calls that block in the kernel, for callers that want a
// completion instead. libibverbs has no asynchronous registration at all, and
// its asynchronous prefetch (no IBV_ADVISE_MR_FLAG_FLUSH) never says when it
// is done.
type workers struct {
	queue chan func()
	left  atomic.Int64 // posted and not finished
	wg    sync.WaitGroup
}

func newWorkers(n int) *workers {
	w := &workers{queue: make(chan func(), jobsQueued)}
	for range n {
		w.wg.Go(func() {
			for job := range w.queue {
				job()
			}
		})
	}
	return w
}

// post hands over a job and answers whether there was room. The job has to
// call done, once, before anybody can learn that it is finished.
func (w *workers) post(job func()) bool {
	w.left.Add(1)
	select {
	case w.queue <- job:
		return true
	default:
		w.left.Add(-1)
		return false
	}
}

func (w *workers) done()        { w.left.Add(-1) }
func (w *workers) pending() int { return int(w.left.Load()) }

// stop ends the workers after what is queued. Nobody may post any more.
func (w *workers) stop() {
	close(w.queue)
	w.wg.Wait()
}
