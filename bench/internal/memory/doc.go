// Package memory is where the buffers of a benchmark come from: a [Mapper]
// maps anonymous memory, by raw system calls or so that a monitor hears of it,
// and a [Source] hands out a pair of buffers for each repetition in the way
// that decides whether a registration cache hits or misses ([Kind]).
//
// A Source is used by one goroutine at a time. What it maps is gone when it is
// closed.
package memory
