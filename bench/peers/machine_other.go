//go:build !linux

package main

import "runtime"

func cpu() string    { return runtime.GOARCH }
func kernel() string { return runtime.GOOS }
func load() string   { return "unknown" }
