package hcasim

import (
	"time"

	"example.com/holdfast/hca"
)

// rnrWait is a sender's wait for the peer to post a receive ("receiver not
// ready"). It ends with an event and not by trying: PostRecv at the peer kicks
// the sender, the peer's failure does, and so does the timer when the retries
// are used up. mu of the queue pair guards it.
type rnrWait struct {
	waiting bool // the driver left; a kick is to bring the next one
	kicked  bool // a kick came while the driver was at it: look again
	expired bool // the retries are used up: the next look is the last
	timer   *time.Timer
	serial  uint64 // which wait the timer belongs to
}

// waitReadyLocked is called by the driver when the peer was not ready. It
// answers statusNotReady if there is nothing to do but go on or leave, which
// the loop of the driver sees by itself, else the status to complete with.
func (q *queuePair) waitReadyLocked() hca.WCStatus {
	w := &q.rnr
	switch {
	case q.state != hca.QPReady:
		return hca.WCWRFlushErr
	case w.expired, q.cfg.RNRRetry < 0:
		q.dev.count.rnrNaks.Add(1)
		return hca.WCRNRRetryExcErr
	case w.kicked:
		return statusNotReady
	}
	w.waiting = true
	q.dev.count.rnrNaks.Add(1)
	if q.cfg.RNRRetry > 0 && w.timer == nil {
		w.serial++
		serial := w.serial
		w.timer = time.AfterFunc(time.Duration(q.cfg.RNRRetry)*q.cfg.RNRTimer, func() { q.expire(serial) })
	}
	return statusNotReady
}

// endLocked forgets the wait, because its request is complete.
func (w *rnrWait) endLocked() {
	w.waiting, w.expired = false, false
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
		w.serial++
	}
}

// kick makes the queue pair look again whether its peer is ready.
func (q *queuePair) kick() {
	q.mu.Lock()
	q.rnr.kicked = true
	q.rnr.waiting = false
	q.mu.Unlock()
	q.drive()
}

func (q *queuePair) expire(serial uint64) {
	q.mu.Lock()
	if q.rnr.serial != serial {
		q.mu.Unlock()
		return
	}
	q.rnr.expired = true
	q.mu.Unlock()
	q.kick()
}
