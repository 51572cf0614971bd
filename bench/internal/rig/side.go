package rig

import (
	"errors"
	"fmt"

	"example.com/holdfast/bench/internal/msg"
	"example.com/holdfast/hca"
	"example.com/holdfast/odpbackend"
	"example.com/holdfast/pinbackend"
	"example.com/holdfast/regcache"
)

// Side is what one rank registers its buffers with. Close the endpoints that
// use it first.
type Side struct {
	Registrar  msg.Registrar
	Name       string                 // what registers, for people
	Cache      *regcache.Cache        // nil for direct
	Prefetcher *odpbackend.Prefetcher // nil without prefetch
}

// NewSide makes the registrar of a backend, by its name, on dev. The cache and
// the prefetcher hear of memory that goes away from mon. Errors are those of
// the backend, the cache and the device; hca.ErrNotSupported where the device
// cannot do it.
func NewSide(backend string, dev hca.Device, mon regcache.Monitor) (s *Side, err error) {
	p, ok := planOf(backend)
	if !ok {
		return nil, &hca.OpError{Op: "bench", Detail: fmt.Sprintf("there is no backend %q", backend), Err: hca.ErrInvalid}
	}
	s = &Side{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
			s = nil
		}
	}()
	var b regcache.Backend = pinbackend.New(dev)
	if p.onDemand {
		if b, err = odpbackend.New(dev, odpbackend.Config{Mode: p.mode}); err != nil {
			return s, err
		}
	}
	s.Name = describe(p, b)
	if !p.kept {
		s.Registrar = msg.Direct{Backend: b}
		return s, nil
	}
	if s.Cache, err = regcache.New(b, regcache.Config{Monitor: mon, MaxRegions: KeptRegions, MaxBytes: keptBytes()}); err != nil {
		return s, err
	}
	cached := msg.Cached{Cache: s.Cache}
	s.Registrar = cached
	if !p.prefetch {
		return s, nil
	}
	if s.Prefetcher, err = odpbackend.NewPrefetcher(dev, odpbackend.PrefetchConfig{}); err != nil {
		return s, err
	}
	s.Registrar = msg.Prefetching{Cached: cached, Prefetcher: s.Prefetcher, Monitor: mon}
	return s, s.Prefetcher.Follow(mon)
}

// describe says what registers.
func describe(p plan, b regcache.Backend) string {
	info := b.Info()
	if !p.kept {
		return info.Name + ", registered and deregistered for each transfer"
	}
	name := info.Name
	if s, ok := b.(fmt.Stringer); ok {
		name = s.String()
	}
	kept := fmt.Sprintf("up to %d registrations kept", KeptRegions)
	if n := keptBytes(); n != 0 && !info.Follows {
		kept = fmt.Sprintf("up to %d registrations or %v kept: RLIMIT_MEMLOCK allows no more", KeptRegions, hca.Bytes(n))
	}
	if p.prefetch {
		kept += ", each buffer prefetched before its transfer"
	}
	return name + ", " + kept
}

// Close ends the prefetcher and closes the cache.
func (s *Side) Close() error {
	var errs []error
	if s.Prefetcher != nil {
		errs = append(errs, s.Prefetcher.Close())
	}
	if s.Cache != nil {
		errs = append(errs, s.Cache.Close())
	}
	return errors.Join(errs...)
}
