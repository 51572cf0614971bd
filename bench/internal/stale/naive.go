package stale

import (
	"errors"
	"sync"

	"example.com/holdfast/bench/internal/msg"
	"example.com/holdfast/hca"
	"example.com/holdfast/regcache"
)

// naive is a registration cache without interception: it keeps every
// registration for ever and finds it again by address and length. That is what
// makes it fast, and wrong.
type naive struct {
	b regcache.Backend

	mu   sync.Mutex
	kept map[hca.Range]*hca.MR
	hits uint64
	made uint64
}

var _ msg.Registrar = (*naive)(nil)

func newNaive(b regcache.Backend) *naive {
	return &naive{b: b, kept: make(map[hca.Range]*hca.MR)}
}

// Acquire answers with the registration of these addresses that is there, or
// makes one that is good for everything.
func (n *naive) Acquire(b []byte, _ hca.Access) (msg.Registration, error) {
	r := hca.RangeOf(b)
	n.mu.Lock()
	defer n.mu.Unlock()
	mr := n.kept[r]
	if mr == nil {
		var err error
		if mr, err = n.b.Register(r, hca.LocalWrite|hca.RemoteWrite); err != nil {
			return msg.Registration{}, err
		}
		n.kept[r] = mr
		n.made++
	} else {
		n.hits++
	}
	return msg.Registration{LKey: mr.LKey, RKey: mr.RKey, MR: mr}, nil
}

// Release keeps it.
func (n *naive) Release(msg.Registration) error { return nil }

// stats are how many registrations it made and how often it answered with one
// that it had.
func (n *naive) stats() (made, hits uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.made, n.hits
}

// Close deregisters everything.
func (n *naive) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for r, mr := range n.kept {
		errs = append(errs, n.b.Deregister(mr))
		delete(n.kept, r)
	}
	return errors.Join(errs...)
}
