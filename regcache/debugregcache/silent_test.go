package debugregcache

import (
	"sync/atomic"

	"example.com/holdfast/hca"
)

// silent is a monitor of which only the name matters. It delivers the one event
// by which the cache sees that it works.
type silent struct {
	name    string
	counter atomic.Uint64
}

func (s *silent) Counter() *atomic.Uint64 { return &s.counter }
func (s *silent) String() string          { return s.name }
func (s *silent) Watch(hca.Range) hca.Watch {
	return hca.Watch{Why: hca.UnkeptNoSource}
}
func (s *silent) UnderWay(uint32) bool { return false }
func (s *silent) Subscribe(func()) (hca.Feed, error) {
	return &oneEvent{}, nil
}
func (s *silent) Exercise() (hca.Range, error) {
	s.counter.Add(hca.CounterStep)
	return hca.Range{Addr: 4096, Len: 4096}, nil
}

type oneEvent struct{ told bool }

func (f *oneEvent) Next(buf []hca.Event) int {
	if f.told {
		return 0
	}
	f.told = true
	buf[0] = hca.Event{Range: hca.Range{Addr: 4096, Len: 4096}, Cause: hca.CauseUnmap}
	return 1
}

func (f *oneEvent) Close() error { return nil }
