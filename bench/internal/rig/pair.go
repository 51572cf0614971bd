package rig

import (
	"errors"

	"example.com/holdfast/bench/internal/msg"
)

// KeptRegions is how many registrations a cache of a pair may keep. It is
// small so that a pool of more mappings than that stays a small pool.
const KeptRegions = 8

// PoolPairs is the number of pairs of buffers in a pool: half as many again as
// the cache may keep.
const PoolPairs = KeptRegions * 3 / 4

// Pair is two joined endpoints, one on each device, that register in the same
// way.
type Pair struct {
	Ends  [2]*msg.Endpoint
	Sides [2]*Side
	Name  string // what registers, for people
}

// keptBytes is how much memory a cache may keep pinned; 0: the cache's own
// default. The caches of the two ranks draw on one account, the user's, and
// neither can make the other give something back: each gets less than half,
// with room left for the registrations in use.
func keptBytes() uint64 {
	limit, limited := memlock()
	if !limited {
		return 0
	}
	return max(1, limit/3)
}

// NewPair makes a pair for a backend, by its name. Errors are those of the
// backend, the cache and the devices; hca.ErrNotSupported where the devices
// cannot do it.
func (g *Rig) NewPair(backend string) (p *Pair, err error) {
	p = &Pair{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
			p = nil
		}
	}()
	for i, dev := range g.Devices {
		if p.Sides[i], err = NewSide(backend, dev, g.Monitor); err != nil {
			return p, err
		}
		if p.Ends[i], err = msg.NewEndpoint(dev, p.Sides[i].Registrar); err != nil {
			return p, err
		}
	}
	p.Name = p.Sides[0].Name
	return p, msg.Join(p.Ends[0], p.Ends[1])
}

// Close closes endpoints and sides.
func (p *Pair) Close() error {
	var errs []error
	for i := range p.Ends {
		if p.Ends[i] != nil {
			errs = append(errs, p.Ends[i].Close())
		}
		if p.Sides[i] != nil {
			errs = append(errs, p.Sides[i].Close())
		}
	}
	return errors.Join(errs...)
}
