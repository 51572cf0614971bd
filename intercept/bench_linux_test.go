//go:build linux && cgo && (amd64 || arm64 || riscv64 || loong64)

package intercept

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
)

func benchMonitor(b *testing.B) *Monitor {
	b.Helper()
	m, err := Userfault()
	if err != nil {
		b.Skip(err)
	}
	b.Cleanup(func() { require.NoError(b, m.Close()) })
	return m
}

func mustMap(b *testing.B, pages int) hca.Range {
	b.Helper()
	n := uintptr(pages) * uintptr(pageSize)
	addr, err := rawMmap(0, n, rw, shared, -1, 0)
	require.NoError(b, err)
	b.Cleanup(func() { rawMunmap(addr, n) })
	for p := addr; p < addr+uint64(n); p += pageSize {
		poke(p, 1)
	}
	return hca.Range{Addr: addr, Len: uint64(n)}
}

// cpu reports what the processors spent on this process an operation, all
// threads together: what counts on a machine that does other things as well.
func cpu(b *testing.B) func() {
	spent := func() int64 {
		var u unix.Rusage
		require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return u.Utime.Nano() + u.Stime.Nano()
	}
	before := spent()
	return func() { b.ReportMetric(float64(spent()-before)/float64(b.N), "cpu-ns/op") }
}

// What an event costs the program: a page is discarded and touched.
func BenchmarkDiscard(b *testing.B) {
	round := func(b *testing.B, r hca.Range) {
		defer cpu(b)()
		for b.Loop() {
			if err := rawMadvise(r.Addr, uintptr(r.Len), unix.MADV_DONTNEED); err != nil {
				b.Fatal(err)
			}
			poke(r.Addr, 1)
		}
	}
	b.Run("NoMonitor", func(b *testing.B) { round(b, mustMap(b, 1)) })
	b.Run("Watched", func(b *testing.B) {
		m := benchMonitor(b)
		r := mustMap(b, 1)
		require.Equal(b, hca.MemForeign, m.Watch(r).Kind)
		round(b, r)
	})
}

// What watching costs the program: mmap, one touch and munmap of 64 KiB. The
// munmap of watched memory waits until the reader has been woken and has read.
func BenchmarkMunmap(b *testing.B) {
	round := func(b *testing.B, between func(hca.Range)) {
		defer cpu(b)()
		for b.Loop() {
			addr, err := rawMmap(0, 16*uintptr(pageSize), rw, shared, -1, 0)
			if err != nil {
				b.Fatal(err)
			}
			poke(addr, 1)
			between(hca.Range{Addr: addr, Len: 16 * pageSize})
			if err := rawMunmap(addr, 16*uintptr(pageSize)); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("NoMonitor", func(b *testing.B) { round(b, func(hca.Range) {}) })
	b.Run("Unwatched", func(b *testing.B) { benchMonitor(b); round(b, func(hca.Range) {}) })
	b.Run("Watched", func(b *testing.B) {
		m := benchMonitor(b)
		round(b, func(r hca.Range) {
			for m.Watch(r).Kind != hca.MemForeign {
			}
		})
	})
	b.Run("Owned", func(b *testing.B) {
		m := benchMonitor(b)
		defer cpu(b)()
		for b.Loop() {
			mem, err := m.Mmap(-1, 0, int(16*pageSize), rw, shared)
			if err != nil {
				b.Fatal(err)
			}
			mem[0] = 1
			m.Watch(hca.RangeOf(mem))
			if err := m.Munmap(mem); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkUnderWay(b *testing.B) {
	m := benchMonitor(b)
	b.ReportAllocs()
	for b.Loop() {
		if m.UnderWay(1) {
			b.Fatal("nothing is under way")
		}
	}
}

// Watch of what is known, and of a mapping that has to be looked up, watched
// and verified.
func BenchmarkWatch(b *testing.B) {
	for _, c := range []struct {
		name  string
		pages int
	}{{"64KiB", 16}, {"16MiB", 4096}} {
		b.Run("Known"+c.name, func(b *testing.B) {
			m := benchMonitor(b)
			r := mustMap(b, c.pages)
			b.ReportAllocs()
			for b.Loop() {
				if m.Watch(r).Kind != hca.MemForeign {
					b.Fatal("not foreign")
				}
			}
		})
		b.Run("Forgotten"+c.name, func(b *testing.B) {
			m := benchMonitor(b)
			r := mustMap(b, c.pages)
			b.ReportAllocs()
			for b.Loop() {
				m.kernel.mu.Lock()
				m.kernel.known.clear()
				m.kernel.mu.Unlock()
				if m.Watch(r).Kind != hca.MemForeign {
					b.Fatal("not foreign")
				}
			}
		})
	}
	b.Run("Owned", func(b *testing.B) {
		m := benchMonitor(b)
		r := mustMap(b, 16)
		require.NoError(b, m.Adopt(r))
		b.ReportAllocs()
		for b.Loop() {
			if m.Watch(r).Kind != hca.MemOwned {
				b.Fatal("not owned")
			}
		}
	})
}

func BenchmarkNextEmpty(b *testing.B) {
	m := benchMonitor(b)
	f, err := m.Subscribe(nil)
	require.NoError(b, err)
	defer f.Close()
	buf := make([]hca.Event, 16)
	b.ReportAllocs()
	for b.Loop() {
		if f.Next(buf) != 0 {
			b.Fatal("an event")
		}
	}
}

func BenchmarkAnnounce(b *testing.B) {
	m := benchMonitor(b)
	r := mustMap(b, 16)
	b.ReportAllocs()
	for b.Loop() {
		m.Begin(r, hca.CauseUnmap).End()
	}
}
