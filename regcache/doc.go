// Package regcache is a cache of memory registrations for RDMA adapters, with
// lazy deregistration, that never answers with a registration of memory that
// is gone.
//
// # Why
//
// An adapter can only touch registered memory. Registering costs microseconds
// to milliseconds, so a message library keeps registrations after use. Then
// the program unmaps the memory, the kernel hands the same address out again,
// and the kept key points the adapter at pages that nobody owns: silent
// corruption. A Cache keeps registrations and learns from a [Monitor] when
// memory goes away.
//
// # Life of a Region
//
// Get looks in the index. A Region that covers the range with at least the
// access is a hit: its reference count goes up, and the protocol in hit.go
// proves that the memory has not gone away. Otherwise the range is registered
// by the [Backend]: watched first, then registered, then published, and only
// if nothing happened to it in between (flight.go). What cannot be proved safe
// is not kept: the Region is used once and dropped at its Release.
//
// A published Region stays until it is invalidated by an event, evicted by a
// limit, replaced by one that does all it does and more, or the cache is
// closed. It then leaves look-up at once, and is deregistered when nobody uses
// it any more, once (region.go has the state word that makes it once).
//
// # Concurrency
//
// Every method of Cache and Region may be called by any goroutine at any time.
// A hit takes no lock and allocates nothing.
//
// # Locks
//
// There is one: Cache.mu. It guards the index's writers, the recency list, the
// limits, the flights and the reading of the monitor's feed. It is held for
// short pieces of work in memory and, while a Region on foreign memory is
// published, for a few calls of Monitor.UnderWay; never while the Backend is
// called, never while waiting. Whoever raises an event takes no lock that a
// Get holds: it writes to the monitor's ring and the monitor's counter, and
// wakes the reaper through a channel that never blocks.
package regcache
