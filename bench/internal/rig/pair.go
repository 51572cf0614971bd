package rig

import (
	"errors"
	"fmt"
	"strings"

	"example.com/holdfast/bench/internal/msg"
	"example.com/holdfast/hca"
	"example.com/holdfast/odpbackend"
	"example.com/holdfast/pinbackend"
	"example.com/holdfast/regcache"
)

// backends are the names of what can be compared.
var backends = []string{"direct", "pin", "odp"}

// Backends lists the names: direct registers and deregisters every transfer,
// pin keeps pinned registrations in a cache, odp keeps on-demand ones in one.
func Backends() []string { return append([]string(nil), backends...) }

// ParseBackends reads a list of names separated by commas.
func ParseBackends(s string) ([]string, error) {
	names := strings.Split(s, ",")
next:
	for _, n := range names {
		for _, known := range backends {
			if n == known {
				continue next
			}
		}
		return nil, fmt.Errorf("%q is none of %s", n, strings.Join(backends, ", "))
	}
	return names, nil
}

// KeptRegions is how many registrations a cache of a pair may keep. It is
// small so that a pool of more mappings than that stays a small pool.
const KeptRegions = 8

// PoolPairs is the number of pairs of buffers in a pool: half as many again as
// the cache may keep.
const PoolPairs = KeptRegions * 3 / 4

// Pair is two joined endpoints, one on each device, that register in the same
// way.
type Pair struct {
	Ends [2]*msg.Endpoint
	Name string // what registers, for people
	// Caches are the caches of the two ends; nil for direct.
	Caches [2]*regcache.Cache
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

// NewPair makes a pair for a backend of Backends. Errors are those of the
// backend, the cache and the devices.
func (g *Rig) NewPair(backend string) (p *Pair, err error) {
	p = &Pair{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
			p = nil
		}
	}()
	for i, dev := range g.Devices {
		var b regcache.Backend = pinbackend.New(dev)
		if backend == "odp" {
			if b, err = odpbackend.New(dev, odpbackend.Config{}); err != nil {
				return p, err
			}
		}
		var reg msg.Registrar = msg.Direct{Backend: b}
		if backend != "direct" {
			if p.Caches[i], err = regcache.New(b, regcache.Config{Monitor: g.Monitor, MaxRegions: KeptRegions, MaxBytes: keptBytes()}); err != nil {
				return p, err
			}
			reg = msg.Cached{Cache: p.Caches[i]}
		}
		if i == 0 {
			p.Name = describe(backend, b)
		}
		if p.Ends[i], err = msg.NewEndpoint(dev, reg); err != nil {
			return p, err
		}
	}
	return p, msg.Join(p.Ends[0], p.Ends[1])
}

func describe(backend string, b regcache.Backend) string {
	if backend == "direct" {
		return b.Info().Name + ", registered and deregistered for each transfer"
	}
	name := b.Info().Name
	if s, ok := b.(fmt.Stringer); ok {
		name = s.String()
	}
	if n := keptBytes(); n != 0 && !b.Info().Follows {
		return fmt.Sprintf("%s, up to %d registrations or %v kept: RLIMIT_MEMLOCK allows no more", name, KeptRegions, hca.Bytes(n))
	}
	return fmt.Sprintf("%s, up to %d registrations kept", name, KeptRegions)
}

// Close closes endpoints and caches.
func (p *Pair) Close() error {
	var errs []error
	for i := range p.Ends {
		if p.Ends[i] != nil {
			errs = append(errs, p.Ends[i].Close())
		}
		if p.Caches[i] != nil {
			errs = append(errs, p.Caches[i].Close())
		}
	}
	return errors.Join(errs...)
}
