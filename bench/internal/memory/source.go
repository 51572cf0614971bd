package memory

import (
	"errors"
	"fmt"
)

// Source hands out the two buffers of one repetition and takes them back.
type Source interface {
	// Take gives the buffers for repetition i, counted from 0.
	Take(i int) (send, recv []byte, err error)
	// Give takes back what Take gave last.
	Give(send, recv []byte) error
	// Close unmaps everything.
	Close() error
}

// NewSource gives a source of buffers of n bytes, made by m, of kind k.
// poolPairs is the number of pairs of a Pool, at least 1. Errors are those of
// the mapper.
func NewSource(m Mapper, k Kind, n, poolPairs int) (Source, error) {
	switch k {
	case Same:
		return newPool(m, n, 1)
	case Pool:
		return newPool(m, n, poolPairs)
	case Fresh:
		return &fresh{m: m, n: n}, nil
	case FreshSameVA:
		return newSameVA(m, n)
	}
	return nil, fmt.Errorf("no such kind of buffers: %v", k)
}

// Need is how many bytes of memory two sources of this kind have in use at one
// time, one in each rank.
func Need(k Kind, n, poolPairs int) uint64 {
	pairs := 1
	if k == Pool {
		pairs = poolPairs
	}
	return 2 * 2 * uint64(pairs) * uint64(Pages(n))
}

// pair is two buffers; each is a mapping of its own.
type pair struct{ send, recv []byte }

func mapPair(m Mapper, n int) (pair, error) {
	send, err := m.Map(Pages(n))
	if err != nil {
		return pair{}, err
	}
	recv, err := m.Map(Pages(n))
	if err != nil {
		return pair{}, errors.Join(err, m.Unmap(send))
	}
	return pair{send[:n], recv[:n]}, nil
}

// whole is b with the rest of its last page: what was mapped.
func whole(b []byte) []byte { return b[:Pages(len(b))] }

func unmapPair(m Mapper, p pair) error {
	return errors.Join(m.Unmap(whole(p.send)), m.Unmap(whole(p.recv)))
}

// pool hands out its pairs in turn. A pool of one is kind Same.
type pool struct {
	m     Mapper
	pairs []pair
}

func newPool(m Mapper, n, pairs int) (Source, error) {
	p := &pool{m: m}
	for range pairs {
		var one pair
		var err error
		if one.send, err = p.mapApart(n); err == nil {
			one.recv, err = p.mapApart(n)
		}
		p.pairs = append(p.pairs, one) // what was mapped of it is unmapped by Close
		if err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	return p, nil
}

// mapApart maps n bytes with a page behind them that nobody may touch. The
// kernel puts one mapping right before the other, and a cache may register
// neighbours as one: then they would not be more mappings than it may keep.
func (p *pool) mapApart(n int) ([]byte, error) {
	b, err := p.m.Map(Pages(n) + PageSize)
	if err != nil {
		return nil, err
	}
	if err := p.m.Reserve(b[Pages(n):]); err != nil {
		return nil, errors.Join(err, p.m.Unmap(b))
	}
	return b[:n], nil
}

func (p *pool) Take(i int) (send, recv []byte, err error) {
	one := p.pairs[i%len(p.pairs)]
	return one.send, one.recv, nil
}

func (p *pool) Give([]byte, []byte) error { return nil }

func (p *pool) Close() error {
	var errs []error
	for _, one := range p.pairs {
		for _, b := range [][]byte{one.send, one.recv} {
			if b != nil {
				errs = append(errs, p.m.Unmap(b[:Pages(len(b))+PageSize]))
			}
		}
	}
	p.pairs = nil
	return errors.Join(errs...)
}

// fresh maps for each repetition and unmaps after it.
type fresh struct {
	m Mapper
	n int
}

func (f *fresh) Take(int) (send, recv []byte, err error) {
	p, err := mapPair(f.m, f.n)
	return p.send, p.recv, err
}

func (f *fresh) Give(send, recv []byte) error { return unmapPair(f.m, pair{send, recv}) }

func (f *fresh) Close() error { return nil }

// sameVA maps new memory for each repetition at the same two addresses. In
// between it keeps the addresses, so that nothing else of the process is put
// there and overwritten.
type sameVA struct {
	m Mapper
	p pair
}

func newSameVA(m Mapper, n int) (Source, error) {
	p, err := mapPair(m, n)
	if err != nil {
		return nil, err
	}
	s := &sameVA{m: m, p: p}
	if err := s.Give(p.send, p.recv); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *sameVA) Take(int) (send, recv []byte, err error) {
	if err := errors.Join(s.m.MapOver(whole(s.p.send)), s.m.MapOver(whole(s.p.recv))); err != nil {
		return nil, nil, err
	}
	return s.p.send, s.p.recv, nil
}

func (s *sameVA) Give(send, recv []byte) error {
	return errors.Join(s.m.Reserve(whole(send)), s.m.Reserve(whole(recv)))
}

func (s *sameVA) Close() error { return unmapPair(s.m, s.p) }
