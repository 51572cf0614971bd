// Package pinbackend registers memory for the cache the classic way: every
// registration pins its pages until it is dropped, on any hca.Device.
//
// A pinned registration does not follow the address space. When the memory is
// unmapped the adapter goes on using the old pages, so the cache needs a
// regcache.Monitor to keep registrations of memory that the caller maps and
// unmaps; this package only makes and drops them.
//
// A [Backend] has no state besides the device, holds no lock and starts
// nothing: there is nothing to close, and every method may be called by any
// number of goroutines at once. The device stays the caller's, to be closed
// after the cache.
package pinbackend
