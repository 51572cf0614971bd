//go:build !linux

package main

import "runtime"

func cpu() string    { return runtime.GOARCH }
func kernel() string { return runtime.GOOS }
func load() string   { return "unknown" }

// threadTime is not known here.
func threadTime() uint64 { return 0 }
