//go:build linux && cgo && verbs

package verbs

// #include "glue.h"
import "C"

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
)

// pollable wraps a copy of one of libibverbs' descriptors, which glue.c made
// non-blocking, for Go's network poller: waiting for it holds no thread.
func pollable(fd int, name string) (*os.File, syscall.RawConn, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	f := os.NewFile(uintptr(dup), name)
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, raw, nil
}

// eventPump reads the adapter's asynchronous events.
type eventPump struct {
	file *os.File
	done chan struct{}

	mu     sync.Mutex
	counts map[int]uint64
}

func (d *device) startEvents() (*eventPump, error) {
	f, raw, err := pollable(int(C.hf_async_fd(d.ctx)), "verbs events")
	if err != nil {
		return nil, d.op("open", err)
	}
	p := &eventPump{file: f, done: make(chan struct{}), counts: map[int]uint64{}}
	go func() {
		defer close(p.done)
		for {
			var e C.struct_hf_event
			r := 0
			err := raw.Read(func(uintptr) bool {
				r = int(C.hf_event(d.ctx, &e))
				return r != -int(syscall.EAGAIN)
			})
			if err != nil {
				return // stop closed the file
			}
			if r == -int(syscall.EINTR) {
				continue
			}
			if r != 0 {
				d.warn("reading events", "error", callFailed("ibv_get_async_event", r, nil))
				return
			}
			p.mu.Lock()
			p.counts[int(e._type)]++
			p.mu.Unlock()
			d.heard(int(e._type), uint64(e.id))
		}
	}()
	return p, nil
}

func (p *eventPump) stop() error {
	err := p.file.Close()
	<-p.done
	return err
}

// heard acts on an event: what is broken says so from now on.
func (d *device) heard(kind int, id uint64) {
	d.warn("event", "kind", eventName(kind))
	switch kind {
	case C.IBV_EVENT_QP_FATAL, C.IBV_EVENT_QP_REQ_ERR, C.IBV_EVENT_QP_ACCESS_ERR:
		if q := d.lookUp(wireID(id)); q != nil {
			q.broke()
		}
	case C.IBV_EVENT_CQ_ERR:
		d.mu.Lock()
		for cq := range d.mu.cqs {
			if cq.id == id {
				defer cq.overflowed()
			}
		}
		d.mu.Unlock()
	case C.IBV_EVENT_DEVICE_FATAL:
		for _, q := range *d.table.Load() {
			if q != nil {
				q.broke()
			}
		}
	}
}

func (d *device) warn(msg string, args ...any) {
	if d.log != nil {
		d.log.Warn(msg, append([]any{"device", d.attr.Name}, args...)...)
	}
}

// Events tells which asynchronous events came, and how often.
func (d *device) Events() []EventCount {
	p := d.events
	p.mu.Lock()
	defer p.mu.Unlock()
	kinds := make([]int, 0, len(p.counts))
	for k := range p.counts {
		kinds = append(kinds, k)
	}
	slices.Sort(kinds)
	out := make([]EventCount, 0, len(kinds))
	for _, k := range kinds {
		out = append(out, EventCount{Name: eventName(k), Count: p.counts[k]})
	}
	return out
}

// eventName is libibverbs' own name for the kind of event, or its number.
func eventName(kind int) string {
	if kind < 0 || kind > C.IBV_EVENT_WQ_FATAL {
		return fmt.Sprintf("event %d", kind)
	}
	return C.GoString(C.ibv_event_type_str(C.enum_ibv_event_type(kind)))
}

var _ hca.Device = (*device)(nil)
