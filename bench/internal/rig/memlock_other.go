//go:build !linux

package rig

// memlock knows of no limit here.
func memlock() (limit uint64, limited bool) { return 0, false }
