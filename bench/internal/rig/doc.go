// Package rig sets up what a benchmark runs on: for each rank of this process
// a device that can talk to the other's, the monitor that tells when memory
// goes away, the mapper that makes buffers in the way that the monitor needs,
// and, for each backend by its name, a pair of message endpoints, or one rank's
// [Side] of it.
//
// A [Rig] lives from Open to Close. The pairs made from it are closed before
// it. It is used by one goroutine at a time; the devices, the monitor and the
// mapper by any number.
package rig
