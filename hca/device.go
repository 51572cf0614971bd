package hca

import (
	"context"
	"time"
)

// Device is an opened adapter: the smallest useful slice of verbs.
//
// Whole is the range that stands for the whole address space in Register with
// OnDemand, on devices whose Attr().ODP.Implicit is true.
type Device interface {
	// Attr says what the device is and can do.
	Attr() Attr

	// Register gives the adapter leave to touch r. Without OnDemand the pages
	// are pinned until Deregister; with it they are not, and r need not be
	// mapped. It takes microseconds to milliseconds.
	//
	// Errors: ErrInvalid, ErrTooLong, ErrBadAddress, ErrNoMemory, ErrNoKeys,
	// ErrAccess, ErrNotSupported, ErrClosed. A registration that fails leaves
	// nothing behind.
	Register(r Range, a Access) (*MR, error)

	// Deregister takes the registration back. When it returns, no transfer
	// through the keys is under way and none can start. Twice: ErrInvalid.
	Deregister(mr *MR) error

	// PostRegister starts Register and returns; the outcome arrives on cq as a
	// WC with Op WCRegister, the given id, and either MR or Err set.
	// Errors of the call itself: ErrClosed, ErrQueueFull, ErrInvalid.
	PostRegister(cq CQ, id uint64, r Range, a Access) error

	// Advise asks for the pages behind the elements to be made ready
	// (prefetch) and waits for it. Errors as ibv_advise_mr(3): ErrInvalid
	// (unknown key, outside the registration), ErrBadAddress (not mapped),
	// ErrAccess (write advice on a registration that cannot write),
	// ErrNotSupported, ErrAgain, ErrClosed. Failure is harmless.
	Advise(advice Advice, sgl []SGE) error

	// PostAdvise starts Advise and returns; completion arrives on cq as a WC
	// with Op WCAdvise and the given id, Err set if it failed. Only keys are
	// checked at once. It keeps sgl until it is complete.
	PostAdvise(cq CQ, id uint64, advice Advice, sgl []SGE) error

	// NewCQ makes a completion queue with room for at least n entries.
	// Errors: ErrInvalid, ErrNoMemory, ErrClosed.
	NewCQ(n int) (CQ, error)

	// NewQP makes a queue pair that is not connected yet.
	// Errors: ErrInvalid, ErrNotSupported, ErrNoMemory, ErrClosed.
	NewQP(cfg QPConfig) (QP, error)

	// Counters tells what the device did since it was opened.
	Counters() Counters

	// Close gives everything back. ErrBusy, with the counts, while queue pairs
	// or registrations are left; ErrClosed the second time.
	Close() error
}

// Whole is the range to register on demand for the whole address space; as in
// verbs: address 0, all the length there is.
var Whole = Range{Addr: 0, Len: ^uint64(0)}

// Advice says what Advise is to do, as enum ib_uverbs_advise_mr_advice.
type Advice uint8

// The advices.
const (
	Prefetch        Advice = iota // make the pages ready for reading
	PrefetchWrite                 // make them ready for writing
	PrefetchNoFault               // take only what is in memory already
)

// Transport is the service of a queue pair.
type Transport uint8

// The transports. UD is not offered by every device.
const (
	RC Transport = iota // reliable connection
	UD                  // unreliable datagram
)

// QPConfig says what queue pair to make. The zero value of every field but the
// completion queues is sensible.
type QPConfig struct {
	Transport Transport // zero: RC
	SendCQ    CQ        // where sends complete; required, and of the same device
	RecvCQ    CQ        // where receives complete; nil: SendCQ
	MaxSend   int       // outstanding sends; 0: 128
	MaxRecv   int       // outstanding receives; 0: 128
	MaxSGE    int       // elements in one request; 0: 4
	// RNRRetry is how often a send is tried again after the peer had no
	// receive ready: 0 for ever (rnr_retry 7 in verbs), n > 0 n times,
	// negative not at all.
	RNRRetry int
	// RNRTimer is how long to wait before each of these tries; 0: 1 ms. It is
	// the responder's min_rnr_timer in verbs.
	RNRTimer time.Duration
}

// QPAddr is what a peer must know to connect to a queue pair: a fixed-size
// value that can be sent over any channel. What the fields hold is the
// device's own business; LID, QPN, PSN and GID for a real adapter.
type QPAddr struct {
	QPN  uint32
	PSN  uint32
	LID  uint16
	MTU  uint8
	Port uint8
	GID  [16]byte
}

// QPState is the state of a queue pair, as enum ibv_qp_state.
type QPState uint8

// The states that can be seen from outside.
const (
	QPInit  QPState = 1 // made, not connected: receives may be posted
	QPReady QPState = 3 // connected (RTS)
	QPError QPState = 6 // something failed; everything posted completes with WCWRFlushErr
)

// QP is a queue pair.
type QP interface {
	// Addr is what the peer needs for Connect.
	Addr() QPAddr
	// Connect ties the queue pair to the peer's. Both ends have to do it
	// before the first send. Errors: ErrInvalid (state, unknown peer),
	// ErrNotSupported, ErrClosed.
	Connect(peer QPAddr) error
	// PostSend queues a request. Its completion arrives on SendCQ, in order;
	// a request that fails moves the queue pair to QPError and flushes the
	// rest. Errors of the call itself, nothing queued: ErrInvalid (no such op,
	// too many elements, not connected), ErrTooLong, ErrQueueFull, ErrClosed.
	PostSend(wr SendWR) error
	// PostRecv queues room for one message. Errors as PostSend.
	PostRecv(wr RecvWR) error
	// State is the state now.
	State() QPState
	// Close flushes what is queued and frees the queue pair. ErrClosed the
	// second time.
	Close() error
}

// Op is what a send request does.
type Op uint8

// The operations; values as enum ibv_wr_opcode.
const (
	RDMAWrite        Op = 0 // write own memory into the peer's
	RDMAWriteWithImm Op = 1 // the same, and consume a receive there
	Send             Op = 2 // send a message into the peer's next receive
	SendWithImm      Op = 3 // the same with 32 bits beside it
	RDMARead         Op = 4 // read the peer's memory into own memory
	AtomicCmpSwap    Op = 5 // 8 bytes at the peer: if equal to Compare, becomes Swap; old value here
	AtomicFetchAdd   Op = 6 // 8 bytes at the peer: Add is added; old value here
)

// SendWR is a send request. It is passed by value and kept by nobody, but the
// memory it names must stay until the completion, and More until PostSend
// returns.
type SendWR struct {
	ID         uint64     // comes back in the completion
	Op         Op         // what to do
	SGE        SGE        // own memory; a zero SGE is a message of no bytes
	More       []SGE      // further elements, in order
	Remote     RemoteAddr // peer's memory, for RDMA and atomics
	Imm        uint32     // for the WithImm operations
	CompareAdd uint64     // for atomics: what to compare with, or to add
	Swap       uint64     // for AtomicCmpSwap
	Unsignaled bool       // no completion if it succeeds
}

// RecvWR is room for one message.
type RecvWR struct {
	ID   uint64
	SGE  SGE
	More []SGE
}

// CQ is a completion queue.
type CQ interface {
	// Poll moves up to len(wc) completions into wc, oldest first, and says how
	// many. It does not wait. Errors: ErrClosed; ErrNoMemory once, after the
	// queue overflowed and completions were lost.
	Poll(wc []WC) (int, error)
	// Wait returns when there is something to poll, when ctx ends (with its
	// error) or when the queue is closed (ErrClosed). Several goroutines may
	// wait; each is woken, and who comes first polls.
	Wait(ctx context.Context) error
	// Close frees the queue. ErrBusy while queue pairs use it; ErrClosed the
	// second time.
	Close() error
}

// Counters are what a device did since it was opened. Bytes count payload.
type Counters struct {
	Registrations   uint64 // successful Register, on-demand included
	Deregistrations uint64
	PinnedNow       uint64 // bytes in pinned registrations now, our own count: page-rounded, overlaps twice
	Sends, Recvs    uint64 // completed without error
	Writes, Reads   uint64
	Atomics         uint64
	Bytes           uint64 // moved
	RNRNaks         uint64 // times a receiver was not ready
	Prefetches      uint64 // Advise calls done without error
	PrefetchPages   uint64 // pages they covered
	Errors          uint64 // completions with a status other than success
}
