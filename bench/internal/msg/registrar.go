package msg

import (
	"example.com/holdfast/hca"
	"example.com/holdfast/regcache"
)

// Registration is leave to use a buffer for one transfer. Who made it put its
// own mark into Region or MR.
type Registration struct {
	LKey, RKey uint32
	Region     *regcache.Region
	MR         *hca.MR
}

// Registrar gets registrations for the buffers of transfers. It may be used by
// several goroutines at once.
type Registrar interface {
	// Acquire answers with a registration that covers b with access a.
	Acquire(b []byte, a hca.Access) (Registration, error)
	// Release gives it back after the transfer.
	Release(Registration) error
}

// Cached takes registrations from a cache.
type Cached struct{ Cache *regcache.Cache }

// Acquire is Cache.GetBytes.
func (c Cached) Acquire(b []byte, a hca.Access) (Registration, error) {
	r, err := c.Cache.GetBytes(b, a)
	if err != nil {
		return Registration{}, err
	}
	return Registration{LKey: r.LKey(), RKey: r.RKey(), Region: r}, nil
}

// Release is Region.Release.
func (c Cached) Release(r Registration) error {
	r.Region.Release()
	return nil
}

// Direct registers every buffer anew and deregisters it after the transfer.
type Direct struct{ Backend regcache.Backend }

// Acquire registers b.
func (d Direct) Acquire(b []byte, a hca.Access) (Registration, error) {
	mr, err := d.Backend.Register(hca.RangeOf(b), a)
	if err != nil {
		return Registration{}, err
	}
	return Registration{LKey: mr.LKey, RKey: mr.RKey, MR: mr}, nil
}

// Release deregisters it.
func (d Direct) Release(r Registration) error { return d.Backend.Deregister(r.MR) }
