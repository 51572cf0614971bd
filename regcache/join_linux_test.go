package regcache_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
	"example.com/holdfast/hcasim"
	"example.com/holdfast/intercept"
	"example.com/holdfast/internal/childtest"
	"example.com/holdfast/odpbackend"
	"example.com/holdfast/pinbackend"
	"example.com/holdfast/regcache"
)

// One cache over two adapters, on real memory: what is sent through either of
// them with the keys of its Regions arrives, byte for byte; when the memory is
// unmapped and comes back both have new registrations; and nothing is left on
// either.
func TestJoinOfTwoLiveDevices(t *testing.T) {
	kinds := map[string]func(d hca.Device) (regcache.Backend, error){
		"pin": func(d hca.Device) (regcache.Backend, error) { return pinbackend.New(d), nil },
		"odp": func(d hca.Device) (regcache.Backend, error) { return odpbackend.New(d, odpbackend.Config{}) },
	}
	for name, pair := range map[string][2]string{"pin_pin": {"pin", "pin"}, "odp_odp": {"odp", "odp"}, "pin_odp": {"pin", "odp"}} {
		t.Run(name, func(t *testing.T) {
			childtest.Run(t, 60*time.Second, nil, func(t *testing.T) {
				fab, a, b := newFabric(t)
				mon, err := intercept.Auto()
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, mon.Close()) })
				first, err := kinds[pair[0]](a)
				require.NoError(t, err)
				second, err := kinds[pair[1]](b)
				require.NoError(t, err)
				j, err := regcache.Join(first, second)
				require.NoError(t, err)
				cache, err := regcache.New(j, regcache.Config{Monitor: mon})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, cache.Close()) })

				const size = 3 * page
				peer, err := hcasim.Open(hcasim.Live{Fabric: fab})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, peer.Close()) })
				sink := make([]byte, size)
				sinkMR, err := peer.Register(hca.RangeOf(sink), hca.LocalWrite|hca.RemoteWrite|hca.RemoteRead)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, peer.Deregister(sinkMR)) })
				wires := []*wire{newWire(t, a, peer), newWire(t, b, peer)}

				var old *regcache.Region
				for round := range 20 {
					g := hca.Range{Addr: place(3), Len: size}
					g, err := mon.Map(g, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED, -1, 0)
					require.NoError(t, err)
					mem := bytesAt(g)
					for use := range 3 {
						r, err := cache.Get(g, allWays)
						require.NoError(t, err)
						for i, w := range wires {
							fill := byte(round*7 + use*3 + i + 1)
							for k := range mem {
								mem[k] = fill
							}
							w.write(t, w.near, r.SGEOn(i, mem), hca.RemoteAddr{Addr: sinkMR.Range.Addr, RKey: sinkMR.RKey})
							require.Equal(t, mem, sink, "out through adapter %d", i)
							for k := range sink {
								sink[k] = ^fill
							}
							w.write(t, w.far, hca.SGE{Addr: sinkMR.Range.Addr, Len: size, LKey: sinkMR.LKey}, r.RemoteOn(i, mem))
							require.Equal(t, sink, mem, "in through adapter %d", i)
						}
						if use == 0 && old != nil && !j.Info().Follows {
							require.NotSame(t, old, r, "the memory went away")
						}
						old = r
						r.Release()
					}
					require.NoError(t, mon.Unmap(g))
				}
				if s := cache.Stats(); !j.Info().Follows {
					require.EqualValues(t, 20, s.Misses)
					require.EqualValues(t, 40, s.Hits)
				}
			})
		})
	}
}

// wire is a connection between an adapter of the cache's and the peer.
type wire struct{ near, far *hcatest.End }

func newWire(t *testing.T, near, far hca.Device) *wire {
	n, f := hcatest.Connect(t, near, far, hca.QPConfig{})
	return &wire{near: n, far: f}
}

// write is an RDMA write from one end that must work.
func (w *wire) write(t *testing.T, from *hcatest.End, local hca.SGE, remote hca.RemoteAddr) {
	t.Helper()
	require.NoError(t, from.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMAWrite, SGE: local, Remote: remote}))
	hcatest.Want(t, from.SendCQ, 1, hca.WCSuccess)
}

// An adapter that is full: what the other registered is taken back from it, and
// the error says which one it was.
func TestJoinOneLiveDeviceIsFull(t *testing.T) {
	childtest.Run(t, 60*time.Second, nil, func(t *testing.T) {
		_, a, _ := newFabric(t) // each fabric has keys of its own
		_, b, _ := newFabric(t)
		j, err := regcache.Join(pinbackend.New(a), pinbackend.New(b))
		require.NoError(t, err)
		cache, err := regcache.New(j, regcache.Config{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, cache.Close()) })
		buf := make([]byte, page)
		var taken []*hca.MR
		for range b.Attr().MaxMR {
			mr, err := b.Register(hca.RangeOf(buf), 0)
			if errors.Is(err, hca.ErrNoKeys) {
				break
			}
			require.NoError(t, err)
			taken = append(taken, mr)
		}
		_, err = cache.GetBytes(buf, hca.LocalWrite)
		require.ErrorIs(t, err, hca.ErrNoKeys)
		require.ErrorContains(t, err, "adapter 2 of 2")
		require.NotContains(t, err.Error(), "adapter 1 of 2")
		require.Zero(t, cache.Stats().Registered)
		for _, mr := range taken {
			require.NoError(t, b.Deregister(mr))
		}
		r, err := cache.GetBytes(buf, hca.LocalWrite)
		require.NoError(t, err)
		r.Release()
	})
}

// BenchmarkJoin is what a miss costs over one adapter and over two.
func BenchmarkJoin(b *testing.B) {
	for _, n := range []int{1, 2} {
		for _, size := range []int{page, 64 << 10, 1 << 20, 16 << 20} {
			b.Run(fmt.Sprintf("adapters=%d/%v", n, hca.Bytes(size)), func(b *testing.B) {
				var parts []regcache.Backend
				for range n {
					d, err := hcasim.Open(hcasim.Live{})
					require.NoError(b, err)
					defer d.Close()
					parts = append(parts, pinbackend.New(d))
				}
				j, err := regcache.Join(parts...)
				require.NoError(b, err)
				buf := make([]byte, size)
				for i := 0; i < size; i += page {
					buf[i] = 1
				}
				for b.Loop() {
					mr, err := j.Register(hca.RangeOf(buf), hca.LocalWrite)
					require.NoError(b, err)
					require.NoError(b, j.Deregister(mr))
				}
			})
		}
	}
}
