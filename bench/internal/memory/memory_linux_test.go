package memory

import (
	"io/fs"
	"os"
	"testing"
	"unsafe"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
)

// at says what is mapped where b is: nothing, no access, or read-write. Asked
// only of far places and of memory that is mapped: elsewhere the runtime may
// have mapped something of its own meanwhile.
func at(t *testing.T, b []byte) string {
	t.Helper()
	p, err := procfs.Self()
	require.NoError(t, err)
	maps, err := p.ProcMaps()
	require.NoError(t, err)
	addr := uintptr(hca.RangeOf(b).Addr)
	for _, m := range maps {
		if m.StartAddr <= addr && addr < m.EndAddr {
			if m.Perms.Read && m.Perms.Write {
				return "rw"
			}
			return "none"
		}
	}
	return ""
}

// ledger is a mapper that knows what is mapped through it, and refuses to take
// away what is not: a second munmap would hit whoever has the address by then.
type ledger struct {
	Mapper
	t    *testing.T
	live map[hca.Range]string
}

func newLedger(t *testing.T, m Mapper) *ledger {
	return &ledger{Mapper: m, t: t, live: map[hca.Range]string{}}
}

func (l *ledger) Map(n int) ([]byte, error) {
	b, err := l.Mapper.Map(n)
	if err == nil {
		l.live[hca.RangeOf(b)] = "rw"
	}
	return b, err
}

func (l *ledger) MapOver(b []byte) error {
	require.Contains(l.t, l.live, hca.RangeOf(b))
	l.live[hca.RangeOf(b)] = "rw"
	return l.Mapper.MapOver(b)
}

func (l *ledger) Reserve(b []byte) error {
	if _, all := l.live[hca.RangeOf(b)]; all {
		l.live[hca.RangeOf(b)] = "none"
	} else {
		l.within(b)
	}
	return l.Mapper.Reserve(b)
}

// within sees to it that b is part of something that is mapped.
func (l *ledger) within(b []byte) {
	for r := range l.live {
		if r.Contains(hca.RangeOf(b)) {
			return
		}
	}
	l.t.Errorf("%v is not mapped", hca.RangeOf(b))
}

func (l *ledger) Unmap(b []byte) error {
	require.Contains(l.t, l.live, hca.RangeOf(b))
	delete(l.live, hca.RangeOf(b))
	return l.Mapper.Unmap(b)
}

func TestPageSize(t *testing.T) { require.Zero(t, os.Getpagesize()%PageSize) }

func TestMappers(t *testing.T) {
	mon, err := intercept.Explicit()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mon.Close()) })
	t.Run("raw", func(t *testing.T) { testMapper(t, Raw{}) })
	t.Run("owned", func(t *testing.T) { testMapper(t, Owned{mon}) })
}

func testMapper(t *testing.T, m Mapper) {
	b, err := m.Map(Pages(5000))
	require.NoError(t, err)
	require.Len(t, b, 8192)
	b[8191] = 7
	require.Equal(t, "rw", at(t, b))
	require.ErrorIs(t, m.MapAt(b), fs.ErrExist)
	require.NoError(t, m.MapOver(b))
	require.Zero(t, b[8191], "the old memory is gone")
	b[0] = 1
	require.NoError(t, m.Reserve(b))
	require.Equal(t, "none", at(t, b))
	require.NoError(t, m.MapOver(b))
	require.Zero(t, b[0])
	require.NoError(t, m.Unmap(b))

	place, err := FarPlace(m, 8192)
	require.NoError(t, err)
	require.Empty(t, at(t, place))
	require.NoError(t, m.MapAt(place))
	place[8191] = 1
	other, err := FarPlace(m, 8192)
	require.NoError(t, err)
	require.NotEqual(t, hca.RangeOf(place), hca.RangeOf(other), "a place that is taken is not found")
	require.NoError(t, m.Unmap(place))
	require.Empty(t, at(t, place))
}

// What Owned maps is known to the monitor, and no longer when it is gone.
func TestOwnedIsOwned(t *testing.T) {
	mon, err := intercept.Explicit()
	require.NoError(t, err)
	defer func() { require.NoError(t, mon.Close()) }()
	m := Owned{mon}
	b, err := m.Map(8192)
	require.NoError(t, err)
	require.Equal(t, hca.MemOwned, mon.Watch(hca.RangeOf(b)).Kind)
	require.NoError(t, m.Unmap(b))
	require.Equal(t, hca.MemUnknown, mon.Watch(hca.RangeOf(b)).Kind)
	place, err := FarPlace(m, 8192)
	require.NoError(t, err)
	require.NoError(t, m.MapAt(place))
	require.Equal(t, hca.MemOwned, mon.Watch(hca.RangeOf(place)).Kind)
	require.NoError(t, m.Unmap(place))
}

func TestSources(t *testing.T) {
	const n = 5000
	take := func(s Source, i int) (send, recv []byte) {
		send, recv, err := s.Take(i)
		require.NoError(t, err)
		require.Len(t, send, n)
		require.Len(t, recv, n)
		require.False(t, hca.RangeOf(send).Pages(PageSize).Overlaps(hca.RangeOf(recv)))
		return send, recv
	}
	for _, k := range Kinds() {
		t.Run(k.String(), func(t *testing.T) {
			m := newLedger(t, Raw{})
			s, err := NewSource(m, k, n, 3)
			require.NoError(t, err)
			seen := map[hca.Range]bool{}
			var send, recv []byte
			for i := range 6 {
				send, recv = take(s, i)
				if k == Fresh || k == FreshSameVA {
					require.Zero(t, send[n-1], "new memory every time")
				}
				send[n-1], recv[n-1] = 1, 1
				seen[hca.RangeOf(send)] = true
				require.NoError(t, s.Give(send, recv))
				switch k {
				case Fresh:
					require.Empty(t, m.live)
				case FreshSameVA:
					require.Equal(t, "none", at(t, send))
				}
			}
			switch k {
			case Pool:
				require.Len(t, seen, 3)
				requireApart(t, m)
			case Same, FreshSameVA:
				require.Len(t, seen, 1)
			}
			require.NoError(t, s.Close())
			require.Empty(t, m.live, "nothing stays mapped")
		})
	}
}

// requireApart: no mapping of the pool touches another that can be registered.
func requireApart(t *testing.T, m *ledger) {
	t.Helper()
	require.Len(t, m.live, 6)
	for r := range m.live {
		guard := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(nil), uintptr(r.End()-PageSize))), PageSize)
		require.Equal(t, "none", at(t, guard))
	}
}

func TestNeed(t *testing.T) {
	for _, k := range Kinds() {
		m := newLedger(t, Raw{})
		for range 2 { // ranks
			s, err := NewSource(m, k, 9000, 5)
			require.NoError(t, err)
			_, _, err = s.Take(0)
			require.NoError(t, err)
		}
		var bytes uint64
		for r := range m.live {
			bytes += 12288
			require.NoError(t, m.Mapper.Unmap(unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(nil), uintptr(r.Addr))), r.Len)))
		}
		require.Equal(t, bytes, Need(k, 9000, 5), k)
	}
}

func TestNoBytes(t *testing.T) {
	for _, k := range Kinds() {
		s, err := NewSource(Raw{}, k, 0, 2)
		require.NoError(t, err)
		send, recv, err := s.Take(0)
		require.NoError(t, err)
		require.Empty(t, send)
		require.Empty(t, recv)
		require.NoError(t, s.Give(send, recv))
		require.NoError(t, s.Close())
	}
}

func TestParseKinds(t *testing.T) {
	ks, err := ParseKinds("pool,same")
	require.NoError(t, err)
	require.Equal(t, []Kind{Pool, Same}, ks)
	for _, k := range Kinds() {
		got, err := ParseKinds(k.String())
		require.NoError(t, err)
		require.Equal(t, []Kind{k}, got)
	}
	for _, bad := range []string{"", "same,", "sam", "Same"} {
		_, err := ParseKinds(bad)
		require.ErrorContains(t, err, "fresh-same-va")
	}
}
