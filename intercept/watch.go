package intercept

import "example.com/holdfast/hca"

// Watch sees to it that the end of the memory in r is reported from now on,
// and says what a kept registration of it needs (regcache.Monitor has the
// contract). Memory mapped through the monitor is hca.MemOwned at once, with a
// counter of its own. Other
// memory is watched by the kernel source, by whole mappings. The first time
// that costs some microseconds, and some 20 ns for each page that is there of
// the 2 MiB around r; later, until an event touches it, no system call.
//
// What a caller must do with the answer. Load the counter, settled, before
// Watch; register; then believe the registration, each time anew, only if the probe
// (UnderWay of the answered domains) is false, the counter is settled, and no
// event since that first load touches r. Memory that goes away while Watch
// runs, or had just gone and was not read yet, is caught by exactly these.
//
// A range that is partly owned and partly not is treated as not owned. A range
// that is touched by an announced operation under way is hca.MemUnknown
// (hca.UnkeptUnsettled), and so is a range that keeps changing.
func (m *Monitor) Watch(r hca.Range) hca.Watch {
	m.watches.Add(1)
	w := m.watch(r)
	switch w.Kind {
	case hca.MemForeign:
		m.foreign.Add(1)
	case hca.MemUnknown:
		m.unknown[w.Why].Add(1)
	}
	return w
}

func (m *Monitor) watch(r hca.Range) hca.Watch {
	if !r.Valid() {
		return unknown(hca.UnkeptNotMapped)
	}
	if m.closed.Load() {
		return unknown(hca.UnkeptNoSource)
	}
	p := m.pages(r)
	m.own.Lock()
	busy := m.own.busy(p.Addr, p.End())
	dom, owned := m.own.owned.covers(p.Addr, p.End())
	m.own.Unlock()
	switch {
	case busy:
		return unknown(hca.UnkeptUnsettled)
	case owned && m.trusts():
		return hca.Watch{Kind: hca.MemOwned, Counter: m.word(dom)}
	case m.source == nil:
		return unknown(hca.UnkeptNoSource)
	}
	return m.source.Watch(p.Addr, p.End())
}

// Kind says which kind of memory r is now, without watching it: memory that
// would be watched but is not is hca.MemUnknown. hca.MemHeld is the cache's
// own affair and never answered.
func (m *Monitor) Kind(r hca.Range) hca.MemKind {
	if !r.Valid() || m.closed.Load() {
		return hca.MemUnknown
	}
	p := m.pages(r)
	m.own.Lock()
	busy := m.own.busy(p.Addr, p.End())
	_, owned := m.own.owned.covers(p.Addr, p.End())
	m.own.Unlock()
	switch {
	case busy:
		return hca.MemUnknown
	case owned && m.trusts():
		return hca.MemOwned
	case m.source != nil:
		return m.source.Kind(p.Addr, p.End())
	}
	return hca.MemUnknown
}

// trusts reports whether the contract of owned memory is relied on: not if it
// need not be.
func (m *Monitor) trusts() bool { return !m.cfg.Strict && (m.source == nil || !m.source.Exact()) }

// Settled is the word of whoever owns the memory in r that every discard
// (madvise) of it has returned and that none will come unannounced while
// registrations of it are made. Memory on which a foreign discard was seen is
// not kept until then, because the kernel tells when a discard begins and not
// when it is done. hca.ErrInvalid for a range that is not valid; hca.ErrAgain
// if events kept coming for a second, and nothing changed; hca.ErrClosed after
// Close.
func (m *Monitor) Settled(r hca.Range) error {
	if err := m.usable("settle", r); err != nil {
		return err
	}
	if m.kernel == nil {
		return nil
	}
	p := m.pages(r)
	return m.kernel.settle(p.Addr, p.End())
}

func unknown(why hca.Unkept) hca.Watch { return hca.Watch{Kind: hca.MemUnknown, Why: why} }
