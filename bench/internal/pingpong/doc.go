// Package pingpong is the benchmark: one rank sends, the other receives and
// sends back, over and over, and every byte is checked.
//
// # What is timed
//
// A repetition has five steps, in both ranks at once:
//
//	take the buffers (mmap, where the kind of buffers says so)   timed
//	fill the send buffer with the pattern of this repetition     not timed
//	send and receive, or receive and send                        timed
//	check every byte of the receive buffer                       not timed
//	give the buffers back (munmap, likewise)                     timed
//
// Mapping and unmapping belong to the time because watching memory makes
// unmapping dearer: a cache has to answer for that too. The ranks wait for
// each other before the third and the fifth step. As in IMB the time of a
// message is half that of a repetition, and that of the slower rank.
//
// # One process or two
//
// A [Game] is both ranks, as two goroutines of one process, and its barrier
// spins on a word of memory. A [Rank] by itself plays against one in another
// process, and their barrier is a message of no bytes each way over the queue
// pair itself ([Messages]): nothing but the adapter works then, and nothing
// spins. It lets the ranks go up to the time of one such message apart, which
// adds half of that to a time at most; spinning lets them go much closer.
package pingpong
