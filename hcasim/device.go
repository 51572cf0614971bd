package hcasim

import (
	"fmt"
	"sync"

	"example.com/holdfast/hca"
)

// Limits of a device. They are the engine's own, chosen to be those of a
// middling real adapter; what the ring limits is said in Attr.
const (
	maxMsg = 1 << 30 // bytes in one message
	maxQP  = 1 << 16
	maxCQ  = 1 << 16
	maxCQE = 1 << 22
	maxSGE = 32
	maxWR  = 1 << 15
)

// Live says how to open a live device. The zero value is sensible.
type Live struct {
	// Fabric is shared by devices that are to talk to each other. Nil: one of
	// the device's own, closed with it.
	Fabric *Fabric
	// Name is how people call the device. Empty: "live" and its number in the
	// fabric.
	Name string
	// Workers is how many posted registrations and advices run at once. 0: 2.
	Workers int
	// PostDepth is how many of them may wait. 0: 1024.
	PostDepth int
}

func (c Live) validate() error {
	for _, f := range []struct {
		name       string
		value, max int
	}{{"Workers", c.Workers, 1 << 10}, {"PostDepth", c.PostDepth, 1 << 20}} {
		if f.value < 0 || f.value > f.max {
			return &hca.OpError{Op: "open", Err: hca.ErrInvalid,
				Detail: fmt.Sprintf("Live.%s is %d, not between 0 and %d", f.name, f.value, f.max)}
		}
	}
	return nil
}

// Device is a live device. It is an hca.Device; see there for its methods.
type Device struct {
	fab       *Fabric
	ownFabric bool
	id        uint16
	attr      hca.Attr
	work      workers
	count     counters

	mu     sync.Mutex
	closed bool
	mrs    int // registrations, those being made included
	qps    int
	cqs    map[*completionQueue]struct{}
}

var _ hca.Device = (*Device)(nil)

// Open opens a device over this process's memory. Errors: ErrInvalid,
// ErrClosed (the fabric), and those of NewFabric.
func Open(cfg Live) (*Device, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	d := &Device{fab: cfg.Fabric, cqs: map[*completionQueue]struct{}{}}
	if d.fab == nil {
		f, err := NewFabric(FabricConfig{})
		if err != nil {
			return nil, err
		}
		d.fab, d.ownFabric = f, true
	}
	if err := d.fab.join(d); err != nil {
		return nil, err
	}
	d.attr = hca.Attr{
		Name:      cfg.Name,
		MaxMR:     maxPinned, // of the fabric: its devices share them
		MaxMsg:    maxMsg,
		MaxQP:     maxQP,
		MaxCQ:     maxCQ,
		MaxCQE:    maxCQE,
		MaxSGE:    maxSGE,
		MaxWR:     maxWR,
		MaxMRSize: 1 << 30,
	}
	if cfg.Name == "" {
		d.attr.Name = fmt.Sprintf("live%d", d.id-1)
	}
	d.fab.host.describe(&d.attr)
	d.work.init(cfg.Workers, cfg.PostDepth)
	return d, nil
}

// Attr says what the device is and can do.
func (d *Device) Attr() hca.Attr { return d.attr }

// Close gives everything back. ErrBusy, with the counts, while queue pairs,
// registrations or posted work are left; ErrClosed the second time. Completion
// queues that are left are closed with it.
func (d *Device) Close() error {
	d.mu.Lock()
	pending := d.work.pending()
	switch {
	case d.closed:
		d.mu.Unlock()
		return d.err("close", hca.ErrClosed)
	case d.qps+d.mrs+pending > 0:
		defer d.mu.Unlock()
		e := d.err("close", hca.ErrBusy)
		e.Detail = fmt.Sprintf("%d queue pairs, %d registrations and %d posted requests are left", d.qps, d.mrs, pending)
		return e
	}
	d.closed = true
	cqs := d.cqs
	d.cqs = nil
	d.mu.Unlock()

	d.work.stop()
	for cq := range cqs {
		cq.shut()
	}
	d.fab.leave(d)
	if d.ownFabric {
		return d.fab.Close()
	}
	return nil
}

// err begins an error of this device.
func (d *Device) err(op string, cause error) *hca.OpError {
	return &hca.OpError{Op: op, Device: d.attr.Name, Err: cause}
}
