// Package bpf is an event source inside the kernel: two small programs, at the
// entry and at the exit of every system call, tell a monitor which memory of
// this process is about to go, and when it has gone. [New] makes such an
// [intercept.Monitor], [Auto] the best one that can be had. It is pure Go and
// needs no C compiler, neither here nor for the programs.
//
// Compared with userfaultfd ([intercept.Userfault]): nobody who unmaps waits
// for anybody, a hit needs no probe, discards are known to be over when they
// are, nothing need be watched page by page, and shmdt, mprotect and
// truncation are seen. A page discarded and written anew cost 3.1 us of
// processor time under this source, 16.7 us under userfaultfd and 3.0 us under
// none (BenchmarkMadvise, Linux 6.18, virtual machine of 2 processors). The
// price: the process has to be allowed to trace the kernel, and as long as the
// monitor lives every system call of every process on the machine takes the
// kernel's slow way in and out and asks the programs whose it is: 0.33 us
// instead of 0.16 us for the shortest there is (BenchmarkOtherProcess, Linux
// 6.18). From Linux 7 on every switch from thread to thread runs one program more,
// which asks the same.
//
// # Why raw tracepoints
//
// Programs on the functions of single system calls (fentry) would leave other
// calls alone. But every such program is passed by, silently, if on the same processor
// another thread that was preempted is in the middle of it, and a munmap that is
// passed by is a stale registration; and calls of 32 bits, which come by a door of
// their own, would need as many programs again. At tracepoints preemption is off up to
// Linux 6.x, so nothing is passed by. From Linux 7.0 on it is not: there a guard at
// the switch from thread to thread reads the kernel's own counts of who is in the
// middle of a program, and vouches for nothing while a thread of ours runs whose calls
// will be passed by (guard_linux.go).
//
// # What the programs do
//
// All state is one block of memory, an array map of one element, that this
// process maps: the counter, the ring of events, the table of operations under
// way. Nobody needs a system call to read it. At the entry of a system call
// that takes memory away the program raises the low part of the counter
// (unsettled), puts the range into the table, then into the ring, and with one
// addition counts the event and lowers the low part. All this is over in less
// than a microsecond, before the call acts. At the exit the slot in the table
// is cleared.
//
// The counter is settled again while the call is still at work, so that other
// memory goes on being hit during a long munmap. Memory that overlaps an
// operation under way is hca.MemUnknown for Watch; all other is hca.MemOwned,
// whoever mapped it: its end is announced before it comes and settled after.
//
// Truncation and hole punching, opening with O_TRUNC among it, name a file and
// not a range, and which file is not certain before the call acts: they are under
// way on everything until they return, and events over everything from the first
// time on that memory of a file is watched. Who never registers memory of files
// does not notice them. process_madvise is over everything as well: its ranges lie
// in memory that can change after the program has read it.
//
// io_uring's own madvise, fallocate, ftruncate and openat pass no entry of a system
// call; two more programs stand where a request is taken and where it is
// completed. A request that asks not to be told of its completion
// (IOSQE_CQE_SKIP_SUCCESS) leaves nothing kept for the life of the monitor.
//
// The calling thread is ours if it runs in our address space, so io_uring's
// workers and children of vfork are. System calls of 32 bits made by a process
// of 64 count as if they had changed everything.
//
// # What is not seen
//
// What another process does to a file that is mapped here, and calls that were
// under way when New was called.
//
// # Life and concurrency
//
// As [intercept.Monitor]. Close detaches the programs, and so does the kernel
// when the process ends, however it does: nothing is pinned. There is one lock,
// on the descriptor of /proc/self/maps, held for reading over Watch and for
// writing by Close.
//
// # Files
//
// new_linux.go how the source starts; kernel_linux.go what it answers;
// layout_linux.go what is shared with the kernel, table_linux.go and
// ring_linux.go how it is read; program_linux.go what the programs are,
// calls_linux.go which system calls they know, uring_linux.go the same for
// io_uring, calls_linux_amd64.go and calls_linux_arm64.go what differs;
// guard_linux.go what is done where the kernel passes programs by,
// counts_linux.go how that is found out.
package bpf
