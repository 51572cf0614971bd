package pinbackend

import (
	"example.com/holdfast/hca"
	"example.com/holdfast/regcache"
)

// Backend makes pinned registrations on one device. New makes one; the zero
// value is not usable.
type Backend struct {
	dev  hca.Device
	info regcache.BackendInfo
}

var _ regcache.Backend = (*Backend)(nil)

// New gives a backend that pins memory on dev. It asks the device for its
// attributes once and does nothing else.
func New(dev hca.Device) *Backend {
	at := dev.Attr()
	return &Backend{
		dev: dev,
		info: regcache.BackendInfo{
			Name:       "pin on " + at.Name,
			PageSize:   at.PageSize,
			MaxRegions: at.MaxMR,
			MaxLen:     at.MaxMRSize,
		},
	}
}

// Info says what the backend is. Follows is false: pinned registrations keep
// the pages they were made with.
func (b *Backend) Info() regcache.BackendInfo { return b.info }

// Register pins the pages of r and gives the device leave to use them. The
// registration covers r to the byte. Errors are those of hca.Device.Register,
// passed on as they are, and ErrInvalid if the access asks for OnDemand, which
// is odpbackend's business.
func (b *Backend) Register(r hca.Range, a hca.Access) (*hca.MR, error) {
	if a.Has(hca.OnDemand) {
		return nil, &hca.OpError{
			Op: "register", Device: b.info.Name, Range: r,
			Detail: "access " + a.String(), Err: hca.ErrInvalid,
			Hint: "a pinned backend cannot register on demand; use odpbackend",
		}
	}
	return b.dev.Register(r, a)
}

// Deregister unpins what Register returned. Errors are those of
// hca.Device.Deregister.
func (b *Backend) Deregister(mr *hca.MR) error { return b.dev.Deregister(mr) }
