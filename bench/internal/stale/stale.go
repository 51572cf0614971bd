package stale

import (
	"context"
	"errors"
	"fmt"

	"example.com/holdfast/bench/internal/memory"
	"example.com/holdfast/bench/internal/msg"
	"example.com/holdfast/bench/internal/rig"
	"example.com/holdfast/hca"
	"example.com/holdfast/pinbackend"
	"example.com/holdfast/regcache"
)

// Outcome is what a loop showed.
type Outcome struct {
	Transfers int
	Wrong     int    // of these, silently
	Made      uint64 // registrations of the cache under test
	Hits      uint64 // times it answered with one that it had
}

// keptRegions is how many registrations regcache may keep here: so few that
// dropped buffers of the Go heap are let go after a while and their addresses
// come back, so many that most transfers of one round are hits.
const keptRegions = 32

// Run runs case c for the given number of rounds on the two devices of g,
// with interception or without. Every error that the loop meets is returned;
// wrong bytes are not errors but counted.
func Run(ctx context.Context, g *rig.Rig, c Case, rounds int, interception bool) (o Outcome, err error) {
	s := &stage{ctx: ctx, dev: [2]hca.Device(g.Devices), mapper: g.Mapper}
	s.peerReg = msg.Direct{Backend: pinbackend.New(s.dev[1])}
	var (
		closeCache func() error
		stats      func() (made, hits uint64)
	)
	if interception {
		cache, err := regcache.New(pinbackend.New(s.dev[0]), regcache.Config{Monitor: g.Monitor, MaxRegions: keptRegions})
		if err != nil {
			return Outcome{}, err
		}
		s.reg, closeCache = msg.Cached{Cache: cache}, cache.Close
		stats = func() (made, hits uint64) {
			st := cache.Stats()
			return st.Registrations, st.Hits
		}
	} else {
		n := newNaive(pinbackend.New(s.dev[0]))
		s.reg, closeCache, stats = n, n.Close, n.stats
	}
	o.Transfers, err = c.run(ctx, s, rounds)
	for _, l := range s.links {
		wrong, e := l.close()
		o.Wrong += wrong
		if e != nil && !errors.Is(err, e) {
			err = errors.Join(err, e)
		}
	}
	o.Made, o.Hits = stats()
	if err = errors.Join(err, closeCache()); err != nil {
		return o, fmt.Errorf("%s: %w", c.Name, err)
	}
	return o, nil
}

// stage is what a loop works with.
type stage struct {
	ctx     context.Context
	dev     [2]hca.Device
	mapper  memory.Mapper
	reg     msg.Registrar // under test
	peerReg msg.Registrar
	links   []*link
}

// link makes a connection, which Run closes.
func (s *stage) link() (*link, error) {
	l, err := newLink(s.ctx, s.dev, s.reg, s.peerReg, s.mapper, size, uint64(len(s.links))<<32)
	if err != nil {
		return nil, err
	}
	s.links = append(s.links, l)
	return l, nil
}
