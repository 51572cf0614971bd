package main

import (
	"fmt"
	"runtime"
)

// machine is where it was measured, and how busy it was.
type machine struct {
	cpu, kernel           string
	loadBefore, loadAfter string
}

func thisMachine() machine {
	return machine{cpu: cpu(), kernel: kernel(), loadBefore: load()}
}

func (m machine) String() string {
	return fmt.Sprintf("%d x %s, %s, %s", runtime.NumCPU(), m.cpu, m.kernel, runtime.Version())
}
