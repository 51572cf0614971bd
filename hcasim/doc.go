// Package hcasim is an HCA in software. Its live form works on the real memory
// of this process, with real pins, real page faults and real time, so that a
// registration cache can be run, tested and measured on any Linux machine
// without RDMA hardware.
//
// # What is real
//
// A pinned registration is an io_uring registered ("fixed") buffer: the kernel
// pins the pages, charges RLIMIT_MEMLOCK, shows them in VmPin, and goes on
// using them after munmap, as a real adapter does. A stale key therefore
// really corrupts. An on-demand registration pins nothing: transfers use plain
// addresses and the kernel faults pages in. The wire is a pipe: what is
// written into it from one and read out of it into the other has moved.
//
// The CPU is the DMA engine: a transfer is executed by the goroutine that
// posts it (or, if the receiver was not ready, by the one that posts the
// receive). Registrations and transfers of one [Fabric] take turns at one
// ring, a registration waiting for up to 256 KiB of copying, so overlap of the
// two cannot be measured here.
//
// Its limits, also found in Attr: 16384 pinned registrations a fabric, of at
// most 1 GiB each; pins are always for writing, so read-only memory registers
// on demand only; the lock limit counts per user, not per process, and not for
// who has CAP_IPC_LOCK; a small buffer on a huge page is charged as the whole
// huge page. No UD transport. The kernel is not told that a pinned page was
// written to: what arrives on shared memory (anonymous, a memfd, System V) that
// the program had only read until then can be lost when the kernel runs short of
// memory after the page was deregistered. Write to such memory once, or prefetch it for
// writing, before it is registered; a real adapter's driver does that itself.
//
// Atomics are done by a CPU instruction, at the address, and so on the pages
// that are mapped there now; nothing in io_uring can do one on a pinned page.
// That is the one thing in which a stale pinned key does not act as on a real
// adapter: it changes the new memory and not the old.
//
// Where io_uring is forbidden (in a container, as a rule) the device comes in a
// lesser form, which Attr().Lesser and Form say: pins by mlock and transfers
// by process_vm_readv, which cannot show stale pages.
//
// # Life cycle
//
// [NewFabric] makes what devices that talk to each other share, [Open] a
// device on it. Devices are closed before their fabric; a device that was
// opened without one brings and takes along its own. What package hca says
// about the life of queue pairs, completion queues and registrations holds.
//
// # Concurrency and lock order
//
// Everything may be called by any number of goroutines at once. Inside, locks
// are taken downwards only, and no two of the same kind at once:
//
//	Device.mu
//	  Fabric.mu
//	  queuePair.mu
//	    completionQueue.mu
//	  workers.mu, table.mu
//	ringHost.mu  (the ring and the wire), lesserHost.mu: last, and nothing inside
package hcasim
