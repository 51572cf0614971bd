package main

import (
	"fmt"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// cpu is the model of the first processor.
func cpu() string {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return "unknown processor"
	}
	all, err := fs.CPUInfo()
	if err != nil || len(all) == 0 || all[0].ModelName == "" {
		return "unknown processor"
	}
	return all[0].ModelName
}

func kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "Linux"
	}
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
}

// load is how many threads wanted to run on average in the last minute.
func load() string {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return "unknown"
	}
	l, err := fs.LoadAvg()
	if err != nil {
		return "unknown"
	}
	return fmt.Sprintf("%.1f", l.Load1)
}

// threadTime is the processor time of this thread, nanoseconds.
func threadTime() uint64 { return clockTime(unix.CLOCK_THREAD_CPUTIME_ID) }

// processTime is the processor time of this process, nanoseconds.
func processTime() uint64 { return clockTime(unix.CLOCK_PROCESS_CPUTIME_ID) }

func clockTime(id int32) uint64 {
	var t unix.Timespec
	if unix.ClockGettime(id, &t) != nil {
		return 0
	}
	return uint64(t.Nano())
}

// pin puts this thread on a processor of its own, as far as there are that many:
// who is the n-th goes to the n-th that it may use. Then threads run at the same
// moment if they can. unpin lets it go where it could go before.
func pin(n int) (unpin func()) {
	var may, one unix.CPUSet
	if unix.SchedGetaffinity(0, &may) != nil {
		return func() {}
	}
	n %= may.Count()
	for cpu := 0; ; cpu++ {
		if !may.IsSet(cpu) {
			continue
		}
		if n == 0 {
			one.Set(cpu)
			break
		}
		n--
	}
	_ = unix.SchedSetaffinity(0, &one) // of what it may use: cannot fail
	return func() { _ = unix.SchedSetaffinity(0, &may) }
}
