//go:build !linux

package main

import "runtime"

func cpu() string    { return runtime.GOARCH }
func kernel() string { return runtime.GOOS }
func load() string   { return "unknown" }

// threadTime and processTime are not known here.
func threadTime() uint64  { return 0 }
func processTime() uint64 { return 0 }

// pin does nothing here.
func pin(int) (unpin func()) { return func() {} }
