package regcache_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
	"example.com/holdfast/internal/childtest"
	"example.com/holdfast/regcache"
)

// I8: a hit makes no system call, and one on foreign memory makes one, the probe.
// The kernel says so: see childtest.Calls.

// quietBackend registers nothing. It counts, because the code that is looked at
// must not register.
type quietBackend struct{ made uint32 }

func (b *quietBackend) Info() regcache.BackendInfo { return regcache.BackendInfo{Name: "quiet"} }

func (b *quietBackend) Register(g hca.Range, a hca.Access) (*hca.MR, error) {
	b.made++
	return &hca.MR{Range: g, Access: a, LKey: b.made, RKey: b.made}, nil
}

func (b *quietBackend) Deregister(*hca.MR) error { return nil }

// The ways to hit. Each does calledHits of them.
const calledHits = 24

// getter is a cache or a View.
type getter interface {
	Get(hca.Range, hca.Access) (*regcache.Region, error)
	GetBytes([]byte, hca.Access) (*regcache.Region, error)
}

// getAs gets b as memory that the cache may hold, or by its addresses alone.
func getAs(from getter, b []byte, held bool) (*regcache.Region, error) {
	if held {
		return from.GetBytes(b, hca.LocalWrite)
	}
	return from.Get(hca.RangeOf(b), hca.LocalWrite)
}

func hitEach(from getter, mem []byte, held bool, release func(*regcache.Region)) {
	for i := range calledHits {
		r, err := getAs(from, mem[i%4*page:i%4*page+page], held)
		if err != nil {
			panic(err)
		}
		release(r)
	}
}

var waysToHit = []struct {
	name  string
	batch bool // one probe for all of them
	hits  func(t *testing.T, c *regcache.Cache, mem []byte, held bool) func()
}{
	{name: "Get", hits: func(t *testing.T, c *regcache.Cache, mem []byte, held bool) func() {
		return func() { hitEach(c, mem, held, (*regcache.Region).Release) }
	}},
	{name: "View", hits: func(t *testing.T, c *regcache.Cache, mem []byte, held bool) func() {
		v, err := c.NewView("view")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, v.Close()) })
		return func() { hitEach(v, mem, held, v.Release) }
	}},
	{name: "GetBatch", batch: true, hits: func(t *testing.T, c *regcache.Cache, mem []byte, held bool) func() {
		gs, out := make([]hca.Range, calledHits), make([]*regcache.Region, calledHits)
		for i := range gs {
			gs[i] = hca.RangeOf(mem[i%4*page : i%4*page+page])
		}
		return func() {
			if err := c.GetBatch(gs, hca.LocalWrite, out); err != nil {
				panic(err)
			}
			for _, r := range out {
				r.Release()
			}
		}
	}},
}

func TestHitsMakeNoSystemCalls(t *testing.T) {
	for _, kind := range []hca.MemKind{hca.MemHeld, hca.MemOwned, hca.MemForeign} {
		for _, way := range waysToHit {
			t.Run(fmt.Sprintf("%v/%s", kind, way.name), func(t *testing.T) {
				t.Parallel()
				childtest.Calls(t, 30*time.Second, childEnv(), func(t *testing.T) func() {
					if regcache.Tracing {
						t.Skip("a build that traces references does more on each hit")
					}
					mem, m := memoryOf(t, kind, 4)
					back := &quietBackend{}
					c, err := regcache.New(back, regcache.Config{Monitor: m, SweepEvery: -1})
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, c.Close()) })
					f := way.hits(t, c, mem, kind == hca.MemHeld)
					kept(t, c, mem, kind)
					f()
					made := back.made
					return func() {
						f()
						if back.made != made {
							panic("not every Get was a hit")
						}
					}
				}, func(t *testing.T, calls []childtest.Call) {
					want := 0
					if kind == hca.MemForeign {
						if want = calledHits; way.batch {
							want = 1
						}
					}
					require.Len(t, calls, want)
					for _, c := range calls {
						require.EqualValues(t, unix.SYS_IOCTL, c.Nr, "%v", c)
						require.EqualValues(t, uffdioWriteprotect, c.Args[1], "%v", c)
					}
				})
			})
		}
	}
}

// A miss makes no system call of the cache's own either, where the monitor knows the
// mapping: no probe, because whoever hits the new Region makes his own.
func TestMissesMakeNoSystemCalls(t *testing.T) {
	for _, kind := range []hca.MemKind{hca.MemHeld, hca.MemOwned, hca.MemForeign} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			childtest.Calls(t, 30*time.Second, childEnv(), func(t *testing.T) func() {
				mem, m := memoryOf(t, kind, 8192)
				back := &quietBackend{}
				c, err := regcache.New(back, regcache.Config{Monitor: m, SweepEvery: -1, MaxMerge: 1})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, c.Close()) })
				kept(t, c, mem[:4*page], kind)
				next := 4 * page
				return func() {
					made := back.made
					for range 8 {
						r, err := getAs(c, mem[next:next+page], kind == hca.MemHeld)
						next += 2 * page
						if err != nil || r.UsedOnce() != hca.KeptAllRight || r.Kind() != kind {
							panic("not kept")
						}
						r.Release()
					}
					if back.made != made+8 {
						panic("not every Get was a miss")
					}
				}
			}, func(t *testing.T, calls []childtest.Call) { require.Empty(t, calls) })
		})
	}
}

// uffdioWriteprotect is UFFDIO_WRITEPROTECT of linux/userfaultfd.h.
const uffdioWriteprotect = 0xc018aa06

// memoryOf gives pages of a kind, and a monitor for it.
func memoryOf(t *testing.T, kind hca.MemKind, pages int) ([]byte, *intercept.Monitor) {
	t.Helper()
	if kind == hca.MemForeign {
		m, err := intercept.Userfault()
		if err != nil {
			t.Skip(err) // the machine forbids userfaultfd, or the build has none
		}
		mem, err := unix.Mmap(-1, 0, pages*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, errors.Join(m.Close(), unix.Munmap(mem))) })
		return mem, m
	}
	m, err := intercept.Explicit()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	if kind == hca.MemHeld {
		return make([]byte, pages*page), m
	}
	mem, err := m.Mmap(-1, 0, pages*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Munmap(mem)) })
	return mem, m
}

// kept registers the memory and sees that it is kept, as the kind that it is.
func kept(t *testing.T, c *regcache.Cache, mem []byte, kind hca.MemKind) {
	t.Helper()
	get := func() *regcache.Region {
		r, err := getAs(c, mem, kind == hca.MemHeld)
		require.NoError(t, err)
		r.Release()
		return r
	}
	require.Eventually(t, func() bool { // what was used once differs from the next
		first := get()
		return first == get()
	}, 10*time.Second, time.Millisecond)
	require.Equal(t, kind, get().Kind())
}
