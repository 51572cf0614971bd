package hca

import (
	"errors"
	"strings"
)

// The kinds of failure, to be tested with errors.Is. What a Device, a Backend
// or the cache returns wraps one of them, as a rule in an *OpError.
var (
	// ErrNoMemory: memory cannot be pinned: the memlock limit is reached, or
	// the machine has no memory left (ENOMEM).
	ErrNoMemory = errors.New("no memory within the lock limit")
	// ErrNoKeys: the device has no free key, slot or translation entry.
	ErrNoKeys = errors.New("no keys left")
	// ErrBadAddress: part of the range is not mapped, or not mapped so that
	// the access can be had (EFAULT).
	ErrBadAddress = errors.New("bad address")
	// ErrAccess: the access is refused: a right that the registration or the
	// memory does not give (EACCES, EPERM).
	ErrAccess = errors.New("access denied")
	// ErrNotSupported: the device, the kernel or this build cannot do it.
	ErrNotSupported = errors.New("not supported")
	// ErrBusy: the object is in use; the text says by how many.
	ErrBusy = errors.New("busy")
	// ErrClosed: the object was closed before.
	ErrClosed = errors.New("closed")
	// ErrInvalid: an argument makes no sense; nothing was done.
	ErrInvalid = errors.New("invalid argument")
	// ErrTooLong: the range is longer than the device's largest registration
	// (Attr.MaxMRSize) or largest message.
	ErrTooLong = errors.New("too long")
	// ErrQueueFull: the queue has no room for one more request.
	ErrQueueFull = errors.New("queue full")
	// ErrAgain: a passing state prevented it; the same call may work next time
	// (EAGAIN).
	ErrAgain = errors.New("try again")
)

// OpError says what was tried, on which device and range, why it failed, and
// what a person can do about it. Err is never nil and is reached by errors.Is
// and errors.As.
type OpError struct {
	Op     string // what was tried: "register", "post send", ...
	Device string // the device's name, empty where there is none
	Range  Range  // the memory concerned, empty where there is none
	Detail string // what the numbers were, empty where there is nothing to add
	Err    error  // the cause
	Hint   string // what to do, empty where there is nothing to advise
}

// Error prints one line: op device range: detail: cause (hint).
func (e *OpError) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Device != "" {
		b.WriteString(" on " + e.Device)
	}
	if !e.Range.Empty() {
		b.WriteString(" " + e.Range.String())
	}
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	b.WriteString(": " + e.Err.Error())
	if e.Hint != "" {
		b.WriteString(" (" + e.Hint + ")")
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *OpError) Unwrap() error { return e.Err }
