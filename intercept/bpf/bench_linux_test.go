//go:build linux && (amd64 || arm64)

package bpf

import (
	"errors"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
)

// sources are what the costs are compared under.
var sources = []struct {
	name string
	open func() (*intercept.Monitor, error) // nil: nobody watches
}{
	{"raw", nil},
	{"userfaultfd", intercept.Userfault},
	{"bpf", func() (*intercept.Monitor, error) { return New(Config{}) }},
	// As from Linux 7 on.
	{"bpf-guarded", func() (*intercept.Monitor, error) { return newMonitor(Config{}, true) }},
}

// under runs body under each source.
func under(b *testing.B, body func(b *testing.B, m *intercept.Monitor)) {
	for _, s := range sources {
		b.Run(s.name, func(b *testing.B) {
			if s.open == nil {
				body(b, nil)
				return
			}
			m, err := s.open()
			if errors.Is(err, hca.ErrAccess) || errors.Is(err, hca.ErrNotSupported) {
				b.Skip(err)
			}
			if err != nil {
				b.Fatal(err)
			}
			body(b, m)
			if err := m.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// cpu reports what the processors spent on this process an operation, all
// threads together: what counts on a machine that does other things as well.
func cpu(b *testing.B) func() {
	spent := func() int64 {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	before := spent()
	return func() { b.ReportMetric(float64(spent()-before)/float64(b.N), "cpu-ns/op") }
}

func benchMap(b *testing.B) hca.Range {
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(pageSize), rw, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		b.Fatal(err)
	}
	*(*byte)(p) = 1
	return hca.Range{Addr: uint64(uintptr(p)), Len: pageSize}
}

// call makes a system call and counts the time that it takes.
func (c *calling) call(b *testing.B, do func() error) {
	began := time.Now()
	err := do()
	c.time += time.Since(began)
	if err != nil {
		b.Fatal(err)
	}
}

// calling is how long system calls took by the clock, who waits for a reader
// included.
type calling struct{ time time.Duration }

func (c *calling) report(b *testing.B) {
	b.ReportMetric(float64(c.time.Nanoseconds())/float64(b.N), "call-ns/op")
}

// BenchmarkMunmap is mmap, a write, Watch where there is a source, and munmap
// of a page; the call alone is munmap.
func BenchmarkMunmap(b *testing.B) {
	under(b, func(b *testing.B, m *intercept.Monitor) {
		done := cpu(b)
		var c calling
		for b.Loop() {
			r := benchMap(b)
			if m != nil && m.Watch(r).Kind == hca.MemUnknown {
				b.Fatal("unknown")
			}
			c.call(b, func() error { return unix.MunmapPtr(pointer(r.Addr), uintptr(r.Len)) })
		}
		done()
		c.report(b)
	})
}

// BenchmarkMadvise discards one watched page, and writes it again.
func BenchmarkMadvise(b *testing.B) {
	under(b, func(b *testing.B, m *intercept.Monitor) {
		r := benchMap(b)
		if m != nil && m.Watch(r).Kind == hca.MemUnknown {
			b.Fatal("unknown")
		}
		page := bytesOf(r)
		done := cpu(b)
		var c calling
		for b.Loop() {
			c.call(b, func() error { return unix.Madvise(page, unix.MADV_DONTNEED) })
			page[0] = 1
		}
		done()
		c.report(b)
		_ = unix.MunmapPtr(pointer(r.Addr), uintptr(r.Len)) // the end of the benchmark
	})
}

// BenchmarkOtherCall is a system call that is nobody's business.
func BenchmarkOtherCall(b *testing.B) {
	under(b, func(b *testing.B, m *intercept.Monitor) {
		done := cpu(b)
		for b.Loop() {
			unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0)
		}
		done()
	})
}

// BenchmarkOtherProcess is what another process pays while this one has a
// monitor, or rather the other way round: the cheapest system call; a loop of
// mmap, a write and munmap of a page, the call alone being munmap; and a byte that
// goes from thread to thread through a pipe, on one processor, with two switches and
// four system calls an operation.
func BenchmarkOtherProcess(b *testing.B) {
	for _, work := range []struct {
		name string
		run  func(b *testing.B)
	}{
		{"call", func(b *testing.B) {
			done := cpu(b)
			for b.Loop() {
				unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0)
			}
			done()
		}},
		{"munmap", func(b *testing.B) {
			done := cpu(b)
			var c calling
			for b.Loop() {
				r := benchMap(b)
				c.call(b, func() error { return unix.MunmapPtr(pointer(r.Addr), uintptr(r.Len)) })
			}
			done()
			c.report(b)
		}},
		{"switch", pingPong},
	} {
		for _, s := range sources {
			b.Run(work.name+"/"+s.name, func(b *testing.B) {
				if s.open != nil {
					defer other(b, s.name)()
				}
				work.run(b)
			})
		}
	}
}

// pingPong is two threads on one processor that pass a byte to each other.
func pingPong(b *testing.B) {
	var there, back [2]int
	for _, p := range []*[2]int{&there, &back} {
		if err := unix.Pipe(p[:]); err != nil {
			b.Fatal(err)
		}
	}
	pass := func(p [2]int, call uintptr, fd int) bool {
		var one [1]byte
		n, _, errno := unix.RawSyscall(call, uintptr(p[fd]), uintptr(unsafe.Pointer(&one)), 1)
		return errno == 0 && n == 1
	}
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with it
		err := onOne()
		for err == nil && pass(there, unix.SYS_READ, 0) && pass(back, unix.SYS_WRITE, 1) {
		}
		ended <- err
	}()
	began := make(chan func())
	go func() {
		runtime.LockOSThread()
		err := onOne()
		done := cpu(b)
		for i := 0; err == nil && i < b.N && pass(there, unix.SYS_WRITE, 1) && pass(back, unix.SYS_READ, 0); i++ {
		}
		unix.Close(there[1])
		ended <- err
		began <- done
	}()
	for range 2 {
		if err := <-ended; err != nil {
			b.Fatal(err)
		}
	}
	(<-began)()
	for _, fd := range []int{there[0], back[0], back[1]} {
		unix.Close(fd)
	}
}

// other starts another process that has a monitor, and skips the benchmark if it
// gets none.
func other(b *testing.B, source string) (stop func()) {
	cmd, out := victim(b, source)
	if !ready(out) {
		_ = cmd.Wait()
		b.Skip("the other process got no monitor")
	}
	return func() {
		b.StopTimer()
		_ = cmd.Process.Kill() // it waits for nothing else
		_ = cmd.Wait()
	}
}

// BenchmarkWatch asks what memory needs that is known already.
func BenchmarkWatch(b *testing.B) {
	under(b, func(b *testing.B, m *intercept.Monitor) {
		if m == nil {
			b.Skip("nobody to ask")
		}
		r := benchMap(b)
		done := cpu(b)
		for b.Loop() {
			if m.Watch(r).Kind == hca.MemUnknown {
				b.Fatal("unknown")
			}
		}
		done()
		_ = unix.MunmapPtr(pointer(r.Addr), uintptr(r.Len)) // the end of the benchmark
	})
}
