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
func threadTime() uint64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return uint64(t.Nano())
}
