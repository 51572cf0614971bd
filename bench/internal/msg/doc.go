// Package msg is a message library as small as one can be that still moves
// every byte without a copy: the place where a registration cache lives in
// real programs, and the way to see how it is embedded.
//
// # Protocol
//
// Two [Endpoint] values, each on its own device, are joined by a reliable
// queue pair. A message moves by a rendezvous that the receiver starts:
//
//	receiver                              sender
//	register the user's buffer            register the user's buffer
//	send address, rkey, length  ------->  wait for them
//	wait                        <-------  RDMA write with immediate
//	release                               wait for the completion, release
//
// Both sides register at the same time, as in an MPI library, and what is
// registered is the user's own memory: what differs between two [Registrar]
// values is the cost of registrations and what the device does with them,
// nothing else. The few bytes of control go through memory of the library,
// registered once. Receives for control are posted ahead, so that the device
// never has to try again.
//
// # Life cycle and concurrency
//
// NewEndpoint, Connect at both ends (or Join), any number of Send, Recv and
// Barrier, Close. One goroutine at a
// time may use an Endpoint. Every wait ends with the context that is given:
// after an error of one side, end the context of the other.
package msg
