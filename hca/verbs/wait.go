//go:build linux && cgo && verbs

package verbs

// #include "glue.h"
import "C"

import (
	"context"
	"os"
	"syscall"

	"example.com/holdfast/hca"
)

// Wait waits for the adapter's completion event, or for a completion of our
// own, without holding a thread.
//
// The order is what makes it safe: ask for an event, then look once more, then
// sleep. A completion before the question is found by the look, one after it
// raises the event.
func (q *completionQueue) Wait(ctx context.Context) error {
	for {
		news, err := q.look()
		if news == nil {
			return err
		}
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// look answers nil if Wait is over, with its error, and else what to wait for.
func (q *completionQueue) look() (<-chan struct{}, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.closed {
		return nil, q.dev.op("wait", hca.ErrClosed)
	}
	if q.mu.overflow || q.mu.next < len(q.mu.ready) {
		return nil, nil
	}
	if q.mu.pump == nil {
		p, err := q.startPump()
		if err != nil {
			return nil, q.dev.op("wait", err)
		}
		q.mu.pump = p
	}
	if !q.mu.armed {
		if e := C.hf_arm(q.cq); e != 0 {
			return nil, q.dev.failed("wait", "ibv_req_notify_cq", int(e))
		}
		q.mu.armed = true
	}
	if err := q.fetch(batch); err != nil {
		return nil, err
	}
	if q.mu.next < len(q.mu.ready) {
		return nil, nil
	}
	return q.mu.news, nil
}

// cqPump turns the events of a completion channel into wake-ups.
type cqPump struct {
	file *os.File
	done chan struct{}
}

func (q *completionQueue) startPump() (*cqPump, error) {
	f, raw, err := pollable(int(q.ch.fd), "verbs completions")
	if err != nil {
		return nil, err
	}
	p := &cqPump{file: f, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		for {
			r := 0
			err := raw.Read(func(uintptr) bool {
				r = int(C.hf_cq_event(q.ch))
				return r != -int(syscall.EAGAIN)
			})
			if err != nil {
				return // stop closed the file
			}
			q.mu.Lock()
			q.mu.armed = false
			q.wake()
			q.mu.Unlock()
			if r != 0 && r != -int(syscall.EINTR) {
				q.dev.warn("waiting for completions", "error", callFailed("ibv_get_cq_event", r, nil))
				return
			}
		}
	}()
	return p, nil
}

// stop ends the pump. Its descriptor is a copy, so closing it cannot fail in a
// way that matters.
func (p *cqPump) stop() {
	_ = p.file.Close()
	<-p.done
}
