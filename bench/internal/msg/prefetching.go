package msg

import (
	"errors"

	"example.com/holdfast/hca"
	"example.com/holdfast/odpbackend"
	"example.com/holdfast/regcache"
)

// Prefetching takes registrations from a cache over on-demand ones, and has
// the pages of each buffer made ready while the two ranks still agree on the
// transfer. Nobody waits for that: what is not ready then is faulted in.
type Prefetching struct {
	Cached
	Prefetcher *odpbackend.Prefetcher
	// Monitor is who the prefetcher hears of memory that goes away from. A
	// cache over on-demand registrations has nothing watched, so that is done
	// here: else memory would be believed warm when it is new.
	Monitor regcache.Monitor
}

// Acquire is that of Cached, and posts the prefetch. A prefetcher that has no
// room for one more does without.
//
// The registration is asked for with leave to write locally even where the
// buffer is only sent: Soft-RoCE prefetches under no other.
func (p Prefetching) Acquire(b []byte, a hca.Access) (Registration, error) {
	reg, err := p.Cached.Acquire(b, a|hca.LocalWrite)
	if err != nil {
		return Registration{}, err
	}
	_ = p.Monitor.Watch(hca.RangeOf(b)) // what cannot be watched is believed warm for too long, and faults
	if err := p.Prefetcher.Post(nil, 0, reg.Region.SGE(b), a.Writes()); err != nil && !errors.Is(err, hca.ErrQueueFull) {
		return Registration{}, errors.Join(err, p.Cached.Release(reg))
	}
	return reg, nil
}
