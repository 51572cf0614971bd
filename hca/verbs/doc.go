// Package verbs is a real adapter: an [hca.Device] over libibverbs, for
// InfiniBand and RoCE hardware and for Linux's Soft-RoCE (rdma_rxe).
//
// It is compiled with cgo and the build tag verbs, and needs libibverbs and
// its header (Debian: libibverbs-dev) to build. Without the tag, without cgo
// or off Linux, [Open] and [List] answer [hca.ErrNotSupported], so that a
// program can name this package in every build.
//
// # Life of a device
//
// [Open] opens one adapter, one port of it and one protection domain, in which
// everything that comes from the device lives. It asks the adapter what it can
// do and tries what an answer alone does not prove: on-demand paging with
// prefetch exists only where kernel, library and adapter all have it. Close
// gives everything back and refuses while queue pairs or registrations are
// left.
//
// Two goroutines belong to a device, both parked in Go's network poller or on
// a channel while nothing happens: one reads the adapter's asynchronous events,
// and a few workers carry out PostRegister and PostAdvise. A completion queue
// has one more from its first Wait on. All end in Close.
//
// # What is posted and what is polled
//
// Every request posted to a queue pair has a slot in a ring on the Go side,
// and the adapter is given the slot's number in place of the caller's. So the
// room in a queue is known exactly, a completion with an error still tells
// what it was, requests without completion never clog a queue (every now and
// then one is signaled all the same and swallowed), and closing a queue pair
// completes whatever was still posted with WCWRFlushErr.
//
// A Poll makes at most one call into C for up to 32 completions, and none
// where nothing is posted that could complete.
//
// # Memory
//
// Addresses reach C as numbers and requests by value or as structs without
// pointers, so C never holds a pointer to Go memory. What a posted request
// names must stay where it is until its completion; that is the caller's part,
// as it is in verbs.
//
// # Concurrency and lock order
//
// All methods may be called by any number of goroutines at once. Locks are
// taken in the order: device (read side) - completion queue - ring of a queue
// pair. A completion is decoded under the lock of its completion queue and
// takes the ring's; a post takes only the ring's, and lets go of it before it
// looks into the completion queue for room.
package verbs
