package odpbackend

import (
	"errors"
	"fmt"

	"example.com/holdfast/hca"
	"example.com/holdfast/regcache"
)

// Backend makes on-demand registrations on one device. New makes one; the
// zero value is not usable.
type Backend struct {
	dev     hca.Device
	mode    Mode
	full    hca.Access // of shared registrations
	windows geometry   // for ModeWindows
	own     bool       // the device can register one range on demand
	info    regcache.BackendInfo
	why     string // why not a better mode, empty where there is none
	table   table
}

var _ regcache.Backend = (*Backend)(nil)

// New gives a backend that registers memory on demand on dev, in the mode that
// cfg asks for or else in the best that works. To see that it works it makes
// and drops one registration of that kind.
//
// Errors: ErrInvalid for a Config that makes no sense; ErrNotSupported where
// the device has no on-demand paging for the operations needed or not in the
// mode that is forced; and what the device says where it cannot register
// anything now (ErrNoKeys, ErrClosed).
func New(dev hca.Device, cfg Config) (*Backend, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	at := dev.Attr()
	refused := func(detail, hint string) error {
		return &hca.OpError{Op: "odpbackend.New", Device: at.Name, Detail: detail, Err: hca.ErrNotSupported, Hint: hint}
	}
	if !at.ODP.Support && !at.ODP.Implicit {
		return nil, refused("the device has no on-demand paging", "use pinbackend")
	}
	if !at.ODP.RC.Has(cfg.Ops) {
		return nil, refused(fmt.Sprintf("on-demand memory is good for operations %#x on reliable connections, %#x needed",
			uint32(at.ODP.RC), uint32(cfg.Ops)), "use pinbackend")
	}

	b := &Backend{dev: dev, full: fullAccess(at.ODP.RC), own: at.ODP.Support}
	b.table.init()
	for _, m := range []Mode{ModeWhole, ModeWindows, ModeRange} {
		if cfg.Mode != ModeAuto && cfg.Mode != m {
			continue
		}
		err := b.try(m, at, cfg)
		if err == nil {
			b.settle(m, at)
			return b, nil
		}
		if cfg.Mode != ModeAuto || errors.Is(err, hca.ErrClosed) || errors.Is(err, hca.ErrNoKeys) {
			return nil, err
		}
		if b.why != "" {
			b.why += "; "
		}
		b.why += fmt.Sprintf("no %v: %v", m, err)
	}
	return nil, refused(b.why, "use pinbackend")
}

// fullAccess is every access that the device can give to on-demand memory.
func fullAccess(rc hca.ODPOps) hca.Access {
	a := hca.OnDemand | hca.LocalWrite
	if rc.Has(hca.ODPWrite) {
		a |= hca.RemoteWrite
	}
	if rc.Has(hca.ODPRead) {
		a |= hca.RemoteRead
	}
	if rc.Has(hca.ODPAtomic) {
		a |= hca.RemoteAtomic
	}
	return a
}

// try says why the device cannot do mode m, nil if it can: by its attributes,
// and then by a registration that is dropped at once, around a variable of our
// own. It sets b.windows.
func (b *Backend) try(m Mode, at hca.Attr, cfg Config) error {
	probe := make([]byte, 1)
	r := hca.RangeOf(probe)
	access := b.full
	lacks := func(detail string) error {
		return &hca.OpError{Op: "odpbackend.New", Device: at.Name, Detail: detail, Err: hca.ErrNotSupported}
	}
	switch m {
	case ModeWhole:
		if !at.ODP.Implicit {
			return lacks("the device has no implicit on-demand paging")
		}
		r = hca.Whole
	case ModeWindows:
		if !at.ODP.Support {
			return lacks("the device registers on demand only the whole address space")
		}
		var ok bool
		if b.windows, ok = fit(cfg.Window, at.MaxMRSize); !ok {
			return lacks(fmt.Sprintf("the device's longest registration, %v, is too short for windows", hca.Bytes(at.MaxMRSize)))
		}
		i, ok := b.windows.find(r)
		if !ok {
			return lacks("no window around " + r.String())
		}
		r = b.windows.window(i)
	default:
		if !at.ODP.Support {
			return lacks("the device registers on demand only the whole address space")
		}
		access = hca.OnDemand | hca.LocalWrite
	}
	mr, err := b.dev.Register(r, access)
	if err != nil {
		return err
	}
	return b.dev.Deregister(mr)
}

// settle fixes the mode and what Info says.
func (b *Backend) settle(m Mode, at hca.Attr) {
	b.mode = m
	b.info = regcache.BackendInfo{
		Name:     fmt.Sprintf("odp (%v) on %s", m, at.Name),
		PageSize: at.PageSize,
		Follows:  true,
	}
	switch m {
	case ModeWindows:
		b.info.Name = fmt.Sprintf("odp (windows of %v) on %s", hca.Bytes(b.windows.size()), at.Name)
		fallthrough
	case ModeRange:
		b.info.MaxRegions = at.MaxMR
		b.info.MaxLen = at.MaxMRSize
	}
}

// Info says what the backend is. The name says which mode runs; Follows is
// true in all of them. MaxRegions and MaxLen are 0 for the whole address
// space, where any number of regions share one registration.
func (b *Backend) Info() regcache.BackendInfo { return b.info }

// Mode is the mode that runs, never ModeAuto.
func (b *Backend) Mode() Mode { return b.mode }

// String says in one line what runs and, where a better mode was tried, why
// it does not.
func (b *Backend) String() string {
	if b.why == "" {
		return b.info.Name
	}
	return b.info.Name + ", " + b.why
}

// Register gives the adapter leave to touch r, which need not be mapped. The
// answer covers r and, but for ModeRange, more; its access is at least a. It
// is a shared registration where one covers r and gives a, and else, or where
// the device refuses the shared one, a registration of r alone.
//
// Errors are those of hca.Device.Register, about r. A registration that fails
// leaves nothing behind.
func (b *Backend) Register(r hca.Range, a hca.Access) (*hca.MR, error) {
	if err := a.Validate(); err != nil {
		return nil, err
	}
	if !r.Valid() {
		return nil, &hca.OpError{Op: "register", Device: b.info.Name, Range: r, Detail: "no bytes, or past the end of the address space", Err: hca.ErrInvalid}
	}
	a |= hca.OnDemand
	key, space, ok := b.sharedFor(r)
	if !ok || !b.full.Has(a) {
		return b.registerOwn(r, a)
	}
	mr, err := b.table.share(key, func() (*hca.MR, error) { return b.dev.Register(space, b.full) })
	if err != nil && b.own && !errors.Is(err, hca.ErrClosed) {
		// What the device says of more than the caller asked for is not the
		// caller's trouble, as long as his own range can be had.
		return b.registerOwn(r, a)
	}
	return mr, err
}

// sharedFor is the shared registration in which r lies: its number and the
// address space that it covers. ok is false if there is none.
func (b *Backend) sharedFor(r hca.Range) (key uint64, space hca.Range, ok bool) {
	switch b.mode {
	case ModeWhole:
		return 0, hca.Whole, true
	case ModeWindows:
		i, ok := b.windows.find(r)
		if !ok {
			return 0, hca.Range{}, false
		}
		return i, b.windows.window(i), true
	}
	return 0, hca.Range{}, false
}

// registerOwn registers r and nothing else.
func (b *Backend) registerOwn(r hca.Range, a hca.Access) (*hca.MR, error) {
	if !b.own {
		return nil, &hca.OpError{
			Op: "register", Device: b.info.Name, Range: r,
			Detail: fmt.Sprintf("access %v, the whole address space has %v", a, b.full),
			Err:    hca.ErrNotSupported, Hint: "use pinbackend for this memory",
		}
	}
	mr, err := b.dev.Register(r, a)
	if err != nil {
		return nil, err
	}
	b.table.add(mr)
	return mr, nil
}

// Deregister gives back what Register returned; once for each Register, also
// where several returned the same. The device drops the registration at the
// last one, and what it says then is the error. ErrInvalid for a registration
// that is not out.
func (b *Backend) Deregister(mr *hca.MR) error {
	last, known := b.table.drop(mr)
	if !known {
		return &hca.OpError{Op: "deregister", Device: b.info.Name, Detail: "not a registration of this backend, or given back before", Err: hca.ErrInvalid}
	}
	if !last {
		return nil
	}
	return b.dev.Deregister(mr)
}
