// Package hca holds the words of the trade: what a registration cache, its
// backends and the adapters under them say to each other. An HCA (host channel
// adapter) is the RDMA name for a network adapter that reads and writes user
// memory by itself. The names and the numbers are those of verbs, so that who
// knows ibv_post_send(3) knows this package.
//
// It has no logic beyond small helpers on its own types, starts nothing, and
// depends on nothing outside the standard library. Every other package of the
// project imports it; it imports none of them.
//
// # Life of the objects
//
// A [Device] is opened by the package that implements it. From it come
// completion queues ([CQ]), queue pairs ([QP]) and registrations ([MR]). Close
// queue pairs before the completion queues they use, and everything before the
// device: Device.Close answers [ErrBusy] while queue pairs or registrations
// are left, so that nothing is lost by mistake.
//
// # Concurrency
//
// Every method of Device, CQ and QP may be called by any number of goroutines
// at once. Work posted to one queue pair by one goroutine starts in the order
// in which it was posted.
package hca
