// Package team is the two ranks of a benchmark, in one process or in two.
//
// # Who decides
//
// A [Team] is asked for pairs of joined endpoints, and a [Pair] for buffers and
// for games of PingPong, without a word about where the ranks are. [Threads]
// has both in this process. [Processes] has rank 0 in this process and rank 1
// in one that it starts; rank 1 runs [Serve]. Rank 0 decides everything (what
// is measured next, how often) and prints everything; rank 1 does as it is told.
//
// # Between two processes
//
// What they say to each other goes through an exchange.Exchange, by numbered
// orders: rank 0 puts "do/7", does its own part, and gets rank 1's answer,
// "did/7". A pair's order carries the address of rank 0's queue pair, its
// answer that of rank 1's. While a game is played nobody says anything; but
// each rank has a Get under way by which it hears at once if the other failed
// (rank 0 puts "mine/7" when it is done) or is gone, and gives up its own part then.
// So a rank that cannot pin its buffers is an answer like any other, and the
// next pair is made.
//
// # Nobody waits for ever
//
// Rank 1 dies with rank 0: by the end of the connection, and on Linux by
// PR_SET_PDEATHSIG too. Rank 0 hears of rank 1's end at once, by the
// connection and from the system. Who is alive and does nothing is named by
// the bound of who waits: that of the caller's context for games, else those
// below.
//
// # Concurrency
//
// Teams and pairs are used by one goroutine at a time. Pairs are closed before
// their team, and a pair before the next one is made.
package team
