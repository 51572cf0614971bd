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
// Its exit status is 0 if all went well, 1 if something failed or bytes were
// wrong that should not have been, and 2 if the command line makes no sense.
package main
