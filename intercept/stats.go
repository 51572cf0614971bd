package intercept

import "example.com/holdfast/hca"

// Stats is what a monitor did since it was made. It is a word of hca's, so that who
// shows it need not import a source of events.
type Stats = hca.MonitorStats

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
