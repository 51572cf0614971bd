// Package stale shows the problem that a registration cache has to solve: a
// registration that is kept while its memory goes away points the adapter at
// pages that nobody owns, and what it reads and writes there is silently
// wrong.
//
// Each [Case] is a loop in which memory goes away between two transfers in its
// own way. It runs twice: with a naive cache that keeps every registration and
// hears of nothing (interception off), and with regcache and a monitor
// (interception on). A round of a loop sends a buffer to a peer that checks
// every byte, and receives one from it and checks that; both ends compute what
// the bytes have to be, so that wrong ones are counted and cannot go unseen.
//
// The peer's own buffer is registered anew for each transfer: what is wrong is
// the work of the cache under test.
package stale
