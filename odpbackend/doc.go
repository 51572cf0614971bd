// Package odpbackend registers memory for the cache on demand (on-demand
// paging, ODP): nothing is pinned, the adapter faults pages in as it needs
// them, and a registration follows the address space by itself. The cache
// then needs no monitor.
//
// # Which registrations it makes
//
// New picks the best [Mode] that the device has:
//
//   - ModeWhole: one registration of the whole address space (implicit ODP).
//   - ModeWindows: explicit registrations of large pieces of address space,
//     each overlapping the next by half, so that any buffer of up to half a
//     window lies in one. Longer buffers get a registration of their own.
//   - ModeRange: one registration for each range asked for.
//
// It makes and drops a registration of the kind before it settles on it, so
// that what Mode and Info().Name say is what really runs; [Backend.String]
// also says why a better mode was not taken. [Config].Mode forces one.
//
// # Sharing
//
// Whole and window registrations are shared: while one is out, every Register
// that it covers answers with the same *hca.MR, and the device drops it at the
// last Deregister. They are made with every access that the device can give to
// on-demand memory, whatever the first caller asked for, so that callers with
// different needs share one key. A peer that is given the rkey of one buffer
// can therefore reach all memory under the same registration: force ModeRange
// where peers are not trusted with that.
//
// # Footprint
//
// Nothing has to be dropped for memory that goes away, so something else has
// to keep registrations from piling up. That is the cache's sweep: an idle
// Region is dropped when nothing is mapped in its range any more, and the range
// of a Region is the whole window. The backend needs no part in it.
//
// # Prefetch
//
// [Backend.Prefetch] and [Backend.PostPrefetch] are one call of the device
// each. A [Prefetcher] is for who prefetches all the time: it puts requests
// together, remembers what is warm, and bounds what is under way. It works
// beside any backend, on any device that can prefetch.
//
// # Life cycle and concurrency
//
// A Backend starts nothing and has nothing to close. It holds registrations
// only between Register and Deregister; the device stays the caller's. Every
// method may be called by any number of goroutines at once. There is one lock,
// and no call into the device is made while it is held: who needs a shared
// registration that another goroutine is just making waits for that one.
//
// A Prefetcher has one goroutine and one completion queue of the device, from
// NewPrefetcher to Close. Its lock comes before that of a Queue; no call into
// the device, and none into a monitor but the lock-free reading of its feed, is
// made while it is held. A monitor it follows calls it back under the monitor's
// own lock of subscribers, so the Prefetcher never subscribes, nor closes a
// feed, with its lock held.
package odpbackend
