//go:build linux && cgo && verbs

package verbs

/*
#cgo LDFLAGS: -libverbs
#cgo noescape hf_poll
#cgo nocallback hf_poll
#cgo noescape hf_arm
#cgo nocallback hf_arm
#cgo noescape hf_post_send
#cgo nocallback hf_post_send
#cgo noescape hf_post_recv
#cgo nocallback hf_post_recv
#cgo noescape hf_advise
#cgo nocallback hf_advise
#cgo noescape hf_nothing
#cgo nocallback hf_nothing
#include "glue.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"example.com/holdfast/hca"
)

// device is one opened port of one adapter, with one protection domain.
type device struct {
	ctx  *C.struct_ibv_context
	pd   *C.struct_ibv_pd
	attr hca.Attr
	port port
	caps C.struct_hf_caps
	log  *slog.Logger

	events *eventPump
	jobs   *workers
	header *scratch // where datagram headers go, nil until the first datagram queue pair; guarded by mu

	table atomic.Pointer[[]*queuePair] // by index in wireID; copied when it changes

	// life is held for reading by whoever calls into C on behalf of the
	// device, and for writing by Close alone.
	life   sync.RWMutex
	closed bool // guarded by life

	mu struct {
		sync.Mutex
		mrs    map[uint32]*registration // by lkey
		cqs    map[*completionQueue]struct{}
		qps    int
		gen    uint16
		pinned uint64
	}

	proved   bool // on-demand paging passed proveODP, or needs no proof
	reregNot whyNot

	count *counters
}

// counters are apart from what hits read, and written by whoever polls.
type counters struct {
	registrations, deregistrations atomic.Uint64
	sends, recvs, writes, reads    atomic.Uint64
	atomics, bytes, errors         atomic.Uint64
	prefetches, prefetchPages      atomic.Uint64
	rnrAtOpen                      uint64
}

// Open opens an adapter.
//
// Errors: ErrInvalid (a field of cfg), ErrNotSupported (no such adapter, no
// adapter at all, no active port, or the kernel has no RDMA), ErrAccess (the
// device file may not be opened), ErrNoMemory.
func Open(cfg Config) (Adapter, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	ctx, name, err := openContext(cfg.Name)
	if err != nil {
		return nil, err
	}
	d := &device{ctx: ctx, log: cfg.Log, count: new(counters)}
	d.attr.Name = name
	d.mu.mrs = map[uint32]*registration{}
	d.mu.cqs = map[*completionQueue]struct{}{}
	d.table.Store(new([]*queuePair))
	if err := d.setUp(cfg); err != nil {
		d.tearDown()
		return nil, err
	}
	return d, nil
}

// setUp fills a device whose context is open. After an error tearDown gives
// back whatever it got.
func (d *device) setUp(cfg Config) error {
	if r := C.hf_query(d.ctx, &d.caps); r != 0 {
		return d.failed("open", "ibv_query_device_ex", int(r))
	}
	var err error
	if d.port, err = d.choosePort(cfg); err != nil {
		return err
	}
	if r := C.hf_alloc_pd(d.ctx, &d.pd); r != 0 {
		return d.failed("open", "ibv_alloc_pd", int(r))
	}
	n := cfg.Workers
	if n == 0 {
		n = 2
	}
	d.jobs = newWorkers(n)
	if err := d.findOut(cfg.TrustODP); err != nil {
		return err
	}
	d.count = &counters{rnrAtOpen: d.rnrNaks()} // what findOut did is not counted
	d.events, err = d.startEvents()
	return err
}

// tearDown gives back what setUp got, and reports the first refusal.
func (d *device) tearDown() error {
	var first error
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	if d.jobs != nil {
		d.jobs.stop()
	}
	if d.events != nil {
		keep(d.events.stop())
	}
	if d.header != nil {
		keep(d.header.free(d))
	}
	if d.pd != nil {
		if r := C.hf_dealloc_pd(d.pd); r != 0 {
			keep(d.failed("close", "ibv_dealloc_pd", int(r)))
		}
	}
	if r := C.hf_close(d.ctx); r != 0 {
		keep(d.failed("close", "ibv_close_device", int(r)))
	}
	return first
}

// enter keeps the device open until exit. It answers ErrClosed for a closed
// one.
func (d *device) enter(op string) error {
	d.life.RLock()
	if d.closed {
		d.life.RUnlock()
		return d.op(op, hca.ErrClosed)
	}
	return nil
}

func (d *device) exit() { d.life.RUnlock() }

// Attr says what the adapter is and can do.
func (d *device) Attr() hca.Attr { return d.attr }

// Close gives the device back, and the completion queues that are left with
// it. Posted registrations and advices that are not done yet count as use.
func (d *device) Close() error {
	d.life.Lock()
	defer d.life.Unlock()
	if d.closed {
		return d.op("close", hca.ErrClosed)
	}
	d.mu.Lock()
	qps, mrs, jobs := d.mu.qps, len(d.mu.mrs), d.jobs.pending()
	cqs := slices.Collect(maps.Keys(d.mu.cqs))
	d.mu.Unlock()
	if qps+mrs+jobs > 0 {
		return &hca.OpError{Op: "close", Device: d.attr.Name, Err: hca.ErrBusy,
			Detail: fmt.Sprintf("%d queue pairs, %d registrations, %d posted requests left", qps, mrs, jobs)}
	}
	for _, cq := range cqs {
		if err := cq.Close(); err != nil && !errors.Is(err, hca.ErrClosed) {
			return err
		}
	}
	d.closed = true
	return d.tearDown()
}

// Counters tells what was done through this device since it was opened.
// RNRNaks alone is counted by the adapter, for the whole of it.
func (d *device) Counters() hca.Counters {
	c := d.count
	d.mu.Lock()
	pinned := d.mu.pinned
	d.mu.Unlock()
	return hca.Counters{
		Registrations: c.registrations.Load(), Deregistrations: c.deregistrations.Load(), PinnedNow: pinned,
		Sends: c.sends.Load(), Recvs: c.recvs.Load(), Writes: c.writes.Load(), Reads: c.reads.Load(),
		Atomics: c.atomics.Load(), Bytes: c.bytes.Load(), RNRNaks: d.rnrNaks() - c.rnrAtOpen,
		Prefetches: c.prefetches.Load(), PrefetchPages: c.prefetchPages.Load(), Errors: c.errors.Load(),
	}
}

// op and failed make the device's errors: op for what it refuses itself,
// failed for a call that answered minus an errno.
func (d *device) op(op string, err error) error {
	return &hca.OpError{Op: op, Device: d.attr.Name, Err: err}
}

func (d *device) refused(op, why string, err error) error {
	return &hca.OpError{Op: op, Device: d.attr.Name, Detail: why, Err: err}
}

func (d *device) failed(op, call string, r int) error {
	return &hca.OpError{Op: op, Device: d.attr.Name, Err: callFailed(call, r, nil)}
}
