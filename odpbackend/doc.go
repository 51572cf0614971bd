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
// # Life cycle and concurrency
//
// A Backend starts nothing and has nothing to close. It holds registrations
// only between Register and Deregister; the device stays the caller's. Every
// method may be called by any number of goroutines at once. There is one lock,
// and no call into the device is made while it is held: who needs a shared
// registration that another goroutine is just making waits for that one.
package odpbackend
