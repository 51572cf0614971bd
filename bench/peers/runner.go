package main

import (
	"fmt"

	"example.com/holdfast/hca"
	"example.com/holdfast/regcache"
)

// runner gets and puts so many ranges, which it picks from the generator's value
// on, and answers with the value that it came to.
type runner func(x uint32, times uint64) (uint32, error)

const access = hca.LocalWrite | hca.RemoteWrite

// runner makes the runner of one thread, for n ranges of which the first is at
// offset first. end is to be called when it has been used for the last time.
func (s *site) runner(way way, n uint32, first uint64) (run runner, end func() error, err error) {
	c, end := s.cache, func() error { return nil }
	switch {
	case s.askedBytes != nil:
		return func(x uint32, times uint64) (uint32, error) { return hitAnyBytes(c, s.askedBytes, n, times, x) }, end, nil
	case s.asked != nil:
		return func(x uint32, times uint64) (uint32, error) { return hitAnyRanges(c, s.asked, n, times, x) }, end, nil
	}
	mem, base := s.mem[first:], hca.RangeOf(s.mem).Addr+first
	switch {
	case way == wayGet && s.kind == held:
		return func(x uint32, times uint64) (uint32, error) { return hitBytes(c, mem, n, times, x) }, end, nil
	case way == wayGet:
		return func(x uint32, times uint64) (uint32, error) { return hitRanges(c, base, n, times, x) }, end, nil
	case way == wayBatch:
		gs, out := make([]hca.Range, batchLen), make([]*regcache.Region, batchLen)
		return func(x uint32, times uint64) (uint32, error) { return hitBatches(c, gs, out, base, n, times, x) }, end, nil
	case way != wayView:
		return nil, end, fmt.Errorf("no way to ask is called %q", way)
	}
	v, err := c.NewView("peers")
	if err != nil {
		return nil, end, err
	}
	if s.kind == held {
		return func(x uint32, times uint64) (uint32, error) { return viewBytes(v, mem, n, times, x) }, v.Close, nil
	}
	return func(x uint32, times uint64) (uint32, error) { return viewRanges(v, base, n, times, x) }, v.Close, nil
}

// What follows is the thing measured: nothing but the generator, Get and Release,
// each pair written out where it is used, as a runtime would have it.

func hitBytes(c *regcache.Cache, mem []byte, n uint32, times uint64, x uint32) (uint32, error) {
	for range times {
		x = x*1664525 + 1013904223
		off := uint64((x>>8)%n) * stride
		r, err := c.GetBytes(mem[off:off+regionLen], access)
		if err != nil {
			return x, err
		}
		r.Release()
	}
	return x, nil
}

func hitRanges(c *regcache.Cache, base uint64, n uint32, times uint64, x uint32) (uint32, error) {
	for range times {
		x = x*1664525 + 1013904223
		r, err := c.Get(hca.Range{Addr: base + uint64((x>>8)%n)*stride, Len: regionLen}, access)
		if err != nil {
			return x, err
		}
		r.Release()
	}
	return x, nil
}

func hitAnyBytes(c *regcache.Cache, all [][]byte, n uint32, times uint64, x uint32) (uint32, error) {
	for range times {
		x = x*1664525 + 1013904223
		r, err := c.GetBytes(all[(x>>8)%n], access)
		if err != nil {
			return x, err
		}
		r.Release()
	}
	return x, nil
}

func hitAnyRanges(c *regcache.Cache, all []hca.Range, n uint32, times uint64, x uint32) (uint32, error) {
	for range times {
		x = x*1664525 + 1013904223
		r, err := c.Get(all[(x>>8)%n], access)
		if err != nil {
			return x, err
		}
		r.Release()
	}
	return x, nil
}

func viewBytes(v *regcache.View, mem []byte, n uint32, times uint64, x uint32) (uint32, error) {
	if n == 0 { // or it would be looked at in every round
		return x, nil
	}
	for range times {
		x = x*1664525 + 1013904223
		off := uint64((x>>8)%n) * stride
		r, err := v.GetBytes(mem[off:off+regionLen], access)
		if err != nil {
			return x, err
		}
		v.Release(r)
	}
	return x, nil
}

func viewRanges(v *regcache.View, base uint64, n uint32, times uint64, x uint32) (uint32, error) {
	if n == 0 { // or it would be looked at in every round
		return x, nil
	}
	for range times {
		x = x*1664525 + 1013904223
		r, err := v.Get(hca.Range{Addr: base + uint64((x>>8)%n)*stride, Len: regionLen}, access)
		if err != nil {
			return x, err
		}
		v.Release(r)
	}
	return x, nil
}

func hitBatches(c *regcache.Cache, gs []hca.Range, out []*regcache.Region, base uint64, n uint32, times uint64, x uint32) (uint32, error) {
	for left := times; left > 0; left -= min(left, batchLen) {
		gs := gs[:min(left, batchLen)]
		for i := range gs {
			x = x*1664525 + 1013904223
			gs[i] = hca.Range{Addr: base + uint64((x>>8)%n)*stride, Len: regionLen}
		}
		if err := c.GetBatch(gs, access, out); err != nil {
			return x, err
		}
		for _, r := range out[:len(gs)] {
			r.Release()
		}
	}
	return x, nil
}

// useBytes and useRange are one get and put by itself.

func useBytes(c *regcache.Cache, b []byte) error {
	r, err := c.GetBytes(b, access)
	if err != nil {
		return err
	}
	r.Release()
	return nil
}

func useRange(c *regcache.Cache, g hca.Range) error {
	r, err := c.Get(g, access)
	if err != nil {
		return err
	}
	r.Release()
	return nil
}
