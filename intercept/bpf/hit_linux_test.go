//go:build linux && (amd64 || arm64)

package bpf

import (
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
	"example.com/holdfast/regcache"
)

// nothing is a Backend that does nothing.
type nothing struct{}

func (nothing) Info() regcache.BackendInfo { return regcache.BackendInfo{Name: "nothing"} }
func (nothing) Register(r hca.Range, a hca.Access) (*hca.MR, error) {
	return &hca.MR{Range: r, Access: a}, nil
}
func (nothing) Deregister(*hca.MR) error { return nil }

// BenchmarkHit is Get and Release of memory that is cached: Go heap that is held,
// memory mapped through the monitor, and memory that was not.
func BenchmarkHit(b *testing.B) {
	under(b, func(b *testing.B, m *intercept.Monitor) {
		b.Run("held", func(b *testing.B) {
			block := make([]byte, 4*pageSize)
			hits(b, m, func(c *regcache.Cache) (*regcache.Region, error) { return c.GetBytes(block, hca.LocalWrite) })
		})
		if m == nil {
			return // other memory that nobody watches is not cached
		}
		b.Run("owned", func(b *testing.B) {
			mem, err := m.Mmap(-1, 0, int(pageSize), rw, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
			if err != nil {
				b.Fatal(err)
			}
			mem[0] = 1
			r := hca.RangeOf(mem)
			hits(b, m, func(c *regcache.Cache) (*regcache.Region, error) { return c.Get(r, hca.LocalWrite) })
			if err := m.Munmap(mem); err != nil {
				b.Fatal(err)
			}
		})
		foreign := func(b *testing.B) {
			r := benchMap(b)
			hits(b, m, func(c *regcache.Cache) (*regcache.Region, error) { return c.Get(r, hca.LocalWrite) })
			if err := unix.MunmapPtr(pointer(r.Addr), uintptr(r.Len)); err != nil {
				b.Fatal(err)
			}
		}
		b.Run("foreign", foreign)
		b.Run("foreign_beside_unmapper", func(b *testing.B) {
			times, stop := unmapper(b)
			defer stop()
			for times.Load() == 0 { // it takes its time to start
				runtime.Gosched()
			}
			foreign(b)
		})
	})
}

// hits are of a cache of its own, which does nothing but hit.
func hits(b *testing.B, m *intercept.Monitor, get func(c *regcache.Cache) (*regcache.Region, error)) {
	cfg := regcache.Config{}
	if m != nil {
		cfg.Monitor = m
	}
	c, err := regcache.New(nothing{}, cfg)
	if err != nil {
		b.Fatal(err)
	}
	done := cpu(b)
	for b.Loop() {
		reg, err := get(c)
		if err != nil {
			b.Fatal(err)
		}
		reg.Release()
	}
	done()
	if s := c.Stats(); s.Misses > 10 {
		b.Fatalf("no hits: %+v", s)
	}
	if err := c.Close(); err != nil {
		b.Fatal(err)
	}
}

// unmapperVar makes the process of unmapper what it is.
const unmapperVar = "HOLDFAST_BPF_UNMAPPER"

// unmapper starts another process that maps and unmaps a page all the time, and
// counts how often, in memory that it shares with this one.
func unmapper(t testing.TB) (times *atomic.Uint64, stop func()) {
	t.Helper()
	fd, err := unix.Dup(memfd(t, 1))
	require.NoError(t, err)
	shared := os.NewFile(uintptr(fd), "shared")
	times = unmaps(t, fd)
	cmd := exec.Command(os.Args[0], "-test.run=^TestDoesNotSee_OtherProcessUnmapping$", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), unmapperVar+"=1")
	cmd.ExtraFiles = []*os.File{shared}
	require.NoError(t, cmd.Start())
	return times, func() {
		t.Helper()
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, cmd.Wait())
		munmap(t, hca.Range{Addr: uint64(uintptr(unsafe.Pointer(times))), Len: pageSize})
		require.NoError(t, shared.Close())
	}
}

// unmaps maps the memory that unmapper counts in.
func unmaps(t testing.TB, fd int) *atomic.Uint64 {
	return (*atomic.Uint64)(pointer(mmap(t, 0, pageSize, rw, unix.MAP_SHARED, fd)))
}

// While another process unmaps all the time, hits are hits and the counter does not
// move. The Go runtime of this process unmaps and discards too, now and then, so one
// quiet time of many is looked for; what the other does would be in every one.
func TestDoesNotSee_OtherProcessUnmapping(t *testing.T) {
	if os.Getenv(unmapperVar) != "" {
		const first = 3 // of the extra files
		for times := unmaps(t, first); ; times.Add(1) {
			munmap(t, hca.Range{Addr: mmap(t, 0, pageSize, rw, private, -1), Len: pageSize})
		}
	}
	inChild(t, func(t *testing.T, m *intercept.Monitor) {
		times, stop := unmapper(t)
		defer stop()
		c, err := regcache.New(nothing{}, regcache.Config{Monitor: m})
		require.NoError(t, err)
		r := memory(t, 1)
		const unmaps, tries = 200, 100
		quiet := false
		for try := 0; try < tries && !quiet; try++ {
			misses, counter := c.Stats().Misses, m.Counter().Load()
			for began := times.Load(); times.Load() < began+unmaps; {
				reg, err := c.Get(r, hca.LocalWrite)
				require.NoError(t, err)
				reg.Release()
			}
			quiet = c.Stats().Misses == misses && m.Counter().Load() == counter
		}
		require.True(t, quiet, "the counter moved, or hits were misses, in each of %d times", tries)
		require.NoError(t, c.Close())
	})
}
