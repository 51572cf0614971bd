package regcache

import (
	"errors"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

func TestTrimAndFlush(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{})
	for i := range uint64(10) {
		mustGet(t, c, at(i*3, 2), 0).Release()
	}
	held := mustGet(t, c, at(0, 2), 0) // the youngest now, and in use
	require.EqualValues(t, 4*pg, c.Trim(3*pg))
	require.Equal(t, 8, c.Stats().Regions)
	require.Zero(t, c.Trim(0))
	require.Equal(t, 7, c.Flush())
	live, _, _ := b.counts()
	require.Equal(t, 1, live)
	held.Release()
	require.Equal(t, 1, c.Flush())
	require.Zero(t, c.Stats().Registered)
	require.Zero(t, c.Trim(math.MaxUint64))
}

func TestInvalidate(t *testing.T) {
	c, b, _ := rig(t, hca.MemOwned, Config{})
	buf := make([]byte, pg)
	h, err := c.GetBytes(buf, 0)
	require.NoError(t, err)
	h.Release()
	idle := mustGet(t, c, at(0, 4), 0)
	idle.Release()
	used := mustGet(t, c, at(10, 4), 0)
	require.Zero(t, c.Invalidate(hca.RangeOf(buf)), "held memory is let go")
	require.Nil(t, h.cold.keep)
	require.Zero(t, c.Invalidate(at(3, 1)))
	require.Equal(t, 1, c.Invalidate(at(9, 2)))
	require.Zero(t, c.Invalidate(hca.Range{}))
	live, _, _ := b.counts()
	require.Equal(t, 1, live, "what nobody used is deregistered when Invalidate returns")
	fresh := mustGet(t, c, at(10, 4), 0)
	require.NotSame(t, used, fresh)
	fresh.Release()
	used.Release()
	require.EqualValues(t, 3, c.Stats().Invalidations)
}

func TestConfigString(t *testing.T) {
	c, _, _ := rig(t, hca.MemOwned, Config{MaxRegions: 7, MaxIdle: time.Minute})
	s := c.Config().String()
	require.Contains(t, s, "at most 7 Regions (Config)")
	require.Contains(t, s, "idle ones kept 1m0s")
	require.NotContains(t, s, "no limit on bytes")
	require.NotZero(t, c.Config().MaxBytes)
	for _, bad := range []Config{{MaxIdle: -1}, {SweepShare: 2}, {SweepShare: -1}, {SweepShare: math.NaN()}} {
		_, err := New(&nopBackend{}, bad)
		require.ErrorIs(t, err, hca.ErrInvalid)
	}
}

func TestList(t *testing.T) {
	b := &nopBackend{info: BackendInfo{MaxLen: 4 * pg}}
	m := &scriptMonitor{kind: hca.MemOwned}
	c, err := New(b, Config{Monitor: m, MaxMerge: 1})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	_, err = c.Get(at(0, 5), 0)
	require.ErrorIs(t, err, hca.ErrTooLong)
	require.ErrorContains(t, err, "GetList")

	want := hca.Range{Addr: at(1, 0).Addr + 100, Len: 10 * pg}
	for _, parallel := range []int{0, 3} {
		l, err := c.GetList(want, hca.LocalWrite, ListConfig{Parallel: parallel})
		require.NoError(t, err)
		at := want.Addr
		for _, s := range l.SGEs(want, nil) {
			require.Equal(t, at, s.Addr)
			at += s.Len
		}
		require.Equal(t, want.End(), at)
		require.Panics(t, func() { l.SGEs(hca.Range{Addr: want.Addr, Len: 100 * pg}, nil) })
		l.Release()
	}
	require.EqualValues(t, c.Stats().Registrations, len(must(c.GetList(want, 0, ListConfig{})).release()), "asked again, all are hits")

	// One piece fails: nothing is held, and the error says which.
	b.onRegister = func(g hca.Range, _ hca.Access) error {
		if g.Contains(at(105, 1)) {
			return hca.ErrBadAddress
		}
		return nil
	}
	_, err = c.GetList(at(100, 12), 0, ListConfig{Parallel: 2})
	require.ErrorIs(t, err, hca.ErrBadAddress)
	require.ErrorContains(t, err, "piece 2 of 3")
	_, err = c.GetList(at(0, 2), 0, ListConfig{Piece: 5})
	require.ErrorIs(t, err, hca.ErrInvalid)
	_, err = c.GetList(hca.Range{}, 0, ListConfig{})
	require.ErrorIs(t, err, hca.ErrInvalid)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (l *List) release() []*Region {
	parts := l.Regions()
	l.Release()
	return parts
}

// The sweep drops what lies over memory that is not mapped, and leaves what is
// mapped or in use.
func TestSweep(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc/self/maps")
	}
	c, _, _ := rig(t, hca.MemForeign, Config{SweepEvery: -1})
	buf := make([]byte, 16*pg) // mapped, as the scripted monitor need not know
	mapped := mustGet(t, c, hca.RangeOf(buf), 0)
	mapped.Release()
	nowhere := hca.Range{Addr: 0x10000, Len: pg} // below vm.mmap_min_addr
	mustGet(t, c, nowhere, 0).Release()
	used := mustGet(t, c, hca.Range{Addr: 0x20000, Len: pg}, 0)
	require.Equal(t, 1, c.Sweep())
	require.Equal(t, 2, c.Stats().Regions)
	used.Release()
	require.Equal(t, 1, c.Sweep())
	require.Same(t, mapped, mustGet(t, c, hca.RangeOf(buf), 0))
	mapped.Release()
	runtime.KeepAlive(buf)
}

// Under on-demand paging a registration of address space goes when nothing at
// all is mapped in it.
func TestC34_SweepFollows(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc/self/maps")
	}
	b := &nopBackend{info: BackendInfo{Follows: true}}
	c, err := New(b, Config{SweepEvery: -1})
	require.NoError(t, err)
	buf := make([]byte, pg)
	mustGet(t, c, hca.Range{Addr: hca.RangeOf(buf).Addr &^ (1<<30 - 1), Len: 1 << 30}, 0).Release()
	mustGet(t, c, hca.Range{Addr: 0x1000, Len: 0x2000}, 0).Release()
	require.Equal(t, 1, c.Sweep())
	require.Equal(t, 1, c.Stats().Regions)
	runtime.KeepAlive(buf)
	require.NoError(t, c.Close())
}

// The sweeper runs by itself, at its interval, and drops what was idle too long.
func TestSweeperAndMaxIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(&nopBackend{}, Config{MaxIdle: time.Minute, SweepEvery: 10 * time.Second})
		require.NoError(t, err)
		a, b := make([]byte, pg), make([]byte, pg)
		for range 5 {
			for _, buf := range [][]byte{a, b} {
				if r, err := c.GetBytes(buf, 0); err == nil {
					r.Release()
				}
			}
			time.Sleep(30 * time.Second)
		}
		require.Equal(t, 2, c.Stats().Regions, "both are used all the time")
		for range 4 {
			r, err := c.GetBytes(a, 0)
			require.NoError(t, err)
			r.Release()
			time.Sleep(30 * time.Second)
		}
		s := c.Stats()
		require.Equal(t, 1, s.Regions, "one was idle for two minutes")
		require.NotZero(t, s.Sweeps)
		if err := c.Close(); !errors.Is(err, nil) {
			t.Error(err)
		}
	})
}
