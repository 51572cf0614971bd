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
// counter; it has one if foreign memory is what churns.
func openSite(kind string, j job) (*site, error) {
	foreignChurn := j.churn == churnSame || j.churn == churnOther
	var m *intercept.Monitor
	var err error
	if kind == "foreign" || foreignChurn {
		if m, err = intercept.Userfault(); err != nil {
			return nil, absentError{err}
		}
	} else if m, err = intercept.Explicit(); err != nil {
		return nil, err
	}
	s := &site{}
	if s.cache, s.made, err = newCache(m); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	size := int(j.regions) * stride
	unmap := func([]byte) error { return nil }
	switch kind {
	case "held":
		s.mem = make([]byte, size) // never touched: takes no memory
	case "owned":
		s.mem, err = m.Mmap(-1, 0, size, readWrite, private)
		unmap = m.Munmap
	case "foreign", "unknown":
		s.mem, err = mapRaw(size)
		unmap = unix.Munmap
	default:
		err = fmt.Errorf("no kind of memory is called %q", kind)
	}
	if err != nil {
		return nil, errors.Join(err, s.cache.Close(), m.Close())
	}
	switch {
	case foreignChurn:
		s.churnOnce, err = s.churnForeign(m, j.churn)
	case j.churn == churnMix:
		s.churnOnce = s.churnOwned(m)
	}
	s.close = func() error {
		err := errors.Join(s.cache.Close(), m.Close())
		return errors.Join(err, unmap(s.mem))
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
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
	mine := m.Watch(hca.RangeOf(s.mem[:regionLen])).Domains
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
