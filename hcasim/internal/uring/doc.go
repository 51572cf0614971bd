// Package uring is the little of Linux's io_uring that a software adapter
// needs, by raw system calls: one ring, a sparse table of registered (fixed)
// buffers, and a call that submits a few reads and writes and waits for all
// of them.
//
// # Life cycle
//
// Open makes a ring, Close gives it back together with every buffer that is
// still registered (the kernel unpins them). Buffers come and go one slot at
// a time with UpdateBuffer.
//
// # Concurrency
//
// UpdateBuffer may be called by any number of goroutines, also during Do; the
// kernel lets one caller at a time into a ring. Do is for one goroutine at a
// time: it owns both rings while it runs. Close must be the last call.
package uring
