//go:build linux && cgo && verbs

package verbs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
	"example.com/holdfast/intercept"
	"example.com/holdfast/internal/childtest"
	"example.com/holdfast/pinbackend"
	"example.com/holdfast/regcache"
)

// lonely is an address that nobody is given who does not ask for it: the
// kernel gives out addresses from the top, and the program, its heap and Go's
// heap lie elsewhere. What is unmapped there can be mapped again.
const lonely = 0x2000_0000_0000

// mapAt maps a page of private memory there, where nothing may be mapped.
func mapAt(t *testing.T, addr uint64) []byte {
	t.Helper()
	p, err := unix.MmapPtr(-1, 0, pointer(addr), page, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
	require.NoError(t, err)
	return bytesAt(p, page)
}

func unmap(t *testing.T, m []byte) {
	t.Helper()
	require.NoError(t, unix.MunmapPtr(pointer(hca.RangeOf(m).Addr), uintptr(len(m))))
}

// After munmap and mmap at the same address a pinned registration writes into
// the page that nobody sees any more, and reports success. An on-demand one
// writes where it should.
func TestStale(t *testing.T) {
	d := open(t)
	for _, c := range []struct {
		name   string
		access hca.Access
		wrong  bool
	}{{"pinned", everything, true}, {"on demand", everything | hca.OnDemand, false}} {
		t.Run(c.name, func(t *testing.T) {
			if c.access&hca.OnDemand != 0 {
				needODP(t, d, hca.ODPWrite)
			}
			p := newPair(t, d, page)
			m := mapAt(t, lonely)
			r := hca.RangeOf(m)
			mr, err := d.Register(r, c.access)
			require.NoError(t, err)
			for i := range 100 {
				unmap(t, m)
				m = mapAt(t, lonely)
				p.src.fill(i + 1)
				require.NoError(t, p.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMAWrite, SGE: p.src.sge(), Remote: hcatest.Remote(mr, m)}))
				hcatest.Want(t, p.x.SendCQ, 1, hca.WCSuccess)
				if c.wrong {
					same(t, make([]byte, page), m, "the write got lost, round %d", i)
				} else {
					same(t, p.src.mem, m, "round %d", i)
				}
			}
			require.NoError(t, d.Deregister(mr))
			unmap(t, m)
		})
	}
}

// A cache of pinned registrations with interception is never stale: a program
// that maps, sends and unmaps at one address sends the right bytes every time.
// The same program with registrations kept by address alone is wrong every
// time but the first, so the test can tell.
func TestCacheNeverStale(t *testing.T) {
	adapter(t)
	childtest.Run(t, 60*time.Second+time.Duration(scaled(400))*time.Second, nil, func(t *testing.T) {
		d := open(t)
		mon, err := intercept.Userfault()
		require.NoError(t, err)
		defer func() { require.NoError(t, mon.Close()) }()
		cache, err := regcache.New(pinbackend.New(d), regcache.Config{Monitor: mon})
		require.NoError(t, err)
		defer func() { require.NoError(t, cache.Close()) }()

		rounds := scaled(10000)
		start := time.Now()
		wrong := sendRounds(t, d, rounds, func(m []byte) (hca.SGE, func()) {
			r, err := cache.Get(hca.RangeOf(m), hca.LocalRead)
			require.NoError(t, err)
			return r.SGE(m), r.Release
		})
		require.Zero(t, wrong)
		t.Logf("%d rounds in %v: %+v", rounds, time.Since(start), cache.Stats())

		var kept *hca.MR
		wrong = sendRounds(t, d, 100, func(m []byte) (hca.SGE, func()) {
			if kept == nil {
				kept, err = d.Register(hca.RangeOf(m), hca.LocalRead)
				require.NoError(t, err)
			}
			return hcatest.SGE(kept, m), func() {}
		})
		require.NoError(t, d.Deregister(kept))
		require.Equal(t, 99, wrong)
	})
}

// sendRounds maps a page at one address, sends it and unmaps it, and answers
// how often the wrong bytes arrived. get registers.
func sendRounds(t *testing.T, d *device, rounds int, get func([]byte) (hca.SGE, func())) (wrong int) {
	t.Helper()
	p := newPair(t, d, page)
	m := mapAt(t, lonely)
	for i := range rounds {
		(&buffer{mem: m}).fill(i)
		sge, release := get(m)
		require.NoError(t, p.x.QP.PostSend(hca.SendWR{ID: uint64(i), Op: hca.RDMAWrite, SGE: sge, Remote: p.dst.remote()}))
		hcatest.Want(t, p.x.SendCQ, uint64(i), hca.WCSuccess)
		if string(m) != string(p.dst.mem) {
			wrong++
		}
		release()
		unmap(t, m)
		m = mapAt(t, lonely)
	}
	unmap(t, m)
	return wrong
}
