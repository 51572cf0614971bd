// Command bench measures what registrations cost a message library, and shows
// what goes wrong when they are kept without care.
//
//	go run ./bench           PingPong between two ranks on real memory of this
//	                         process: every backend, every way to use buffers,
//	                         every byte checked; then a table that compares them
//	go run ./bench stale     the problem itself: the same loops with interception
//	                         off and on, and how many transfers were wrong
//	go run ./bench -h        the flags
//
// On a real adapter (-device verbs:NAME, in a build with -tags verbs) the two
// ranks can also be two processes: -ranks process. Rank 1 is then this program
// started once more with the same arguments and, in the environment variable
// HOLDFAST_RANK, how to find rank 0: its number, a port of the loopback
// interface, and a secret. That variable is between the two of them. Rank 0
// decides and prints; addresses of queue pairs and what each rank came to go
// over a TCP connection, which nothing uses while a sample is timed; the ranks
// wait for each other by messages over the queue pair. Rank 1 dies with rank 0,
// and if rank 1 is gone the command says so at once and fails.
//
// Its exit status is 0 if all went well, 1 if something failed or bytes were
// wrong that should not have been, and 2 if the command line makes no sense.
package main
