package main

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
)

const (
	readWrite = unix.PROT_READ | unix.PROT_WRITE
	private   = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
)

// openSite makes the cache and the memory for a job. Held and owned memory need
// no kernel source, and without one nothing but what is announced moves the
// counters; it has one if foreign memory is what churns.
func openSite(k kind, j job) (*site, error) {
	foreignChurn := j.churn == churnSame || j.churn == churnOther
	var m *intercept.Monitor
	var err error
	if k == foreign || foreignChurn {
		if m, err = intercept.Userfault(); err != nil {
			return nil, absentError{err}
		}
	} else if m, err = intercept.Explicit(); err != nil {
		return nil, err
	}
	s := &site{kind: k}
	if s.cache, s.made, err = newCache(m); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	unmap := func() error { return nil }
	s.close = func() error { return errors.Join(s.cache.Close(), m.Close(), unmap()) }

	mapped := uint64(j.regions) * stride
	switch j.mode {
	case modeMiss:
		mapped += j.iters * stride
	case modeEnd, modeElsewhere:
		mapped += stride
	}
	if j.sizes != sizesSame {
		mapped = 0
		for i := range j.regions {
			piece, _, _ := layout(i)
			mapped += piece
		}
	}
	var mem []byte
	switch k {
	case held:
		if j.sizes == sizesSame {
			mem = make([]byte, mapped) // never touched: takes no memory
		}
	case owned:
		mem, err = m.Mmap(-1, 0, int(mapped), readWrite, private)
		unmap = func() error { return m.Munmap(mem) }
	case foreign, unknown:
		mem, err = mapRaw(int(mapped))
		unmap = func() error { return unix.Munmap(mem) }
	default:
		err = fmt.Errorf("no kind of memory is called %q", k)
	}
	if err != nil {
		unmap = func() error { return nil }
		return nil, errors.Join(err, s.close())
	}
	if j.sizes == sizesSame {
		s.mem = mem[:uint64(j.regions)*stride]
	} else {
		s.layOut(mem, j)
	}
	if rest := mem[len(s.mem):]; j.sizes == sizesSame && len(rest) > 0 {
		s.more = hca.RangeOf(rest)
	}
	if k == owned {
		// What a discard announces is still there afterwards.
		s.gone = func(g hca.Range) { m.Begin(g, hca.CauseDiscard).End() }
	}
	switch {
	case foreignChurn:
		s.churnOnce, err = s.churnForeign(m, j.churn)
	case j.churn == churnMix:
		s.churnOnce = s.churnOwned(m)
	case j.mode == modeMiss && k == foreign:
		m.Watch(hca.RangeOf(mem)) // what a miss costs when its mapping is known already
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// layOut puts ranges of mixed sizes into mem, or makes each a Go object of its own.
func (s *site) layOut(mem []byte, j job) {
	for i := range j.regions {
		piece, start, length := layout(i)
		var b []byte
		if s.kind == held {
			b = make([]byte, piece)
		} else {
			b, mem = mem[:piece], mem[piece:]
		}
		b = b[start : start+length]
		asked := b
		if j.sizes == sizesInside {
			from, n := inside(length)
			asked = b[from : from+n]
		}
		if s.kind == held {
			s.wholeBytes, s.askedBytes = append(s.wholeBytes, b), append(s.askedBytes, asked)
		} else {
			s.whole, s.asked = append(s.whole, hca.RangeOf(b)), append(s.asked, hca.RangeOf(asked))
		}
	}
}

func mapRaw(size int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, size, readWrite, private)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	return b, nil
}

// churnOwned churns memory of the monitor's.
func (s *site) churnOwned(m *intercept.Monitor) func() error {
	return func() error {
		b, err := m.Mmap(-1, 0, regionLen, readWrite, private)
		if err != nil {
			return err
		}
		return errors.Join(useRange(s.cache, hca.RangeOf(b)), m.Munmap(b))
	}
}

// churnForeign churns memory behind the monitor's back, always at one address,
// whose mapping is on the event channel of the memory that is hit, or on
// another. Which channel a mapping gets follows from its address, so addresses
// are tried until one fits. Memory that is hit and is not foreign has no channel:
// then any will do. What unmaps is a mapping without access over it, and not
// munmap, which would leave a hole for others to map into; to the kernel and the
// monitor it is the same.
func (s *site) churnForeign(m *intercept.Monitor, want churn) (func() error, error) {
	var mine uint32
	if s.kind != held { // the Go heap is not to be watched
		mine = m.Watch(s.at(0)).Domains
	}
	const room = 64
	area, err := unix.MmapPtr(-1, 0, nil, room*stride, unix.PROT_NONE, private)
	if err != nil {
		return nil, fmt.Errorf("reserve addresses to churn: %w", err)
	}
	for i := range room {
		p := unsafe.Add(area, i*stride)
		g := hca.Range{Addr: uint64(uintptr(p)), Len: regionLen}
		mapAs := func(prot int) error {
			_, err := unix.MmapPtr(-1, 0, p, regionLen, prot, private|unix.MAP_FIXED)
			return err
		}
		if err := mapAs(readWrite); err != nil {
			return nil, fmt.Errorf("map a range to churn: %w", err)
		}
		on := m.Watch(g).Domains
		if err := mapAs(unix.PROT_NONE); err != nil {
			return nil, fmt.Errorf("unmap a range to churn: %w", err)
		}
		if on == 0 || mine != 0 && (on == mine) != (want == churnSame) {
			continue
		}
		return func() error {
			if err := mapAs(readWrite); err != nil {
				return err
			}
			return errors.Join(useRange(s.cache, g), mapAs(unix.PROT_NONE))
		}, nil
	}
	return nil, fmt.Errorf("none of %d addresses is on a channel that is %s", room, want)
}
