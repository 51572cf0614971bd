package intercept

import "example.com/holdfast/hca"

// Stats is what a monitor did since it was made. The numbers are read one
// after the other and not at one moment.
type Stats struct {
	Source string // as Monitor.String

	Unmaps, Remaps, Discards uint64 // reported by the kernel
	Others                   uint64 // the same, of other causes: access taken away
	Reads                    uint64 // in how many reads (userfaultfd)
	Announced                uint64 // by Begin, Disown and the monitor's own calls
	Lost                     uint64 // times a feed fell behind by more than the ring

	Watches uint64                // calls of Watch
	Foreign uint64                // of these answered hca.MemForeign
	Unknown [hca.NumUnkept]uint64 // of these answered hca.MemUnknown, by reason

	Changed uint64 // times a range changed while Watch looked at it

	Feeds  int // open now
	Known  int // pieces of address space known to be watched
	Taints int // pieces in doubt after a foreign discard
}

// Stats tells what the monitor did.
func (m *Monitor) Stats() Stats {
	s := Stats{Source: m.String(), Lost: m.lost.Load(), Watches: m.watches.Load(), Foreign: m.foreign.Load()}
	for i := range m.announced {
		s.Announced += m.announced[i].Load()
	}
	for i := range m.unknown {
		s.Unknown[i] = m.unknown[i].Load()
	}
	m.subs.Lock()
	s.Feeds = len(m.subs.feeds)
	m.subs.Unlock()
	if m.source != nil {
		c := m.source.Counts()
		s.Unmaps, s.Remaps, s.Discards, s.Others = c.Unmaps, c.Remaps, c.Discards, c.Others
		s.Reads, s.Known, s.Taints, s.Changed = c.Reads, c.Known, c.Taints, c.Changed
	}
	return s
}
