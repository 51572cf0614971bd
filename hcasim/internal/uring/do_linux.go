package uring

import (
	"os"

	"golang.org/x/sys/unix"
)

// NoBuffer as Op.Buf: plain addresses, no registered buffer.
const NoBuffer = -1

// Op is one read or write of a file at its current position.
type Op struct {
	Write bool  // from memory into the file; else the other way
	Link  bool  // the next Op starts only when this one is complete, and not at all if it failed or fell short
	FD    int32 // the file
	Buf   int32 // slot of the registered buffer that Addr lies in, or NoBuffer
	Len   uint32
	Addr  uint64
}

// Do submits ops (at most the entries of the ring) in one system call, waits
// until all are complete, and puts their results into res: a count of bytes,
// or a negative errno (ECANCELED behind a link that broke). It allocates
// nothing. An error means that the ring itself failed; what was moved is then
// unknown and the ring should be closed.
func (r *Ring) Do(ops []Op, res []int32) error {
	tail := r.sqTail.Load()
	for i := range ops {
		op := &ops[i]
		s := sqe{opcode: opRead, fd: op.FD, off: ^uint64(0), addr: op.Addr, len: op.Len, userData: uint64(i)}
		if op.Write {
			s.opcode = opWrite
		}
		if op.Buf != NoBuffer {
			s.opcode, s.bufIndex = opReadFixed, uint16(op.Buf)
			if op.Write {
				s.opcode = opWriteFixed
			}
		}
		if op.Link {
			s.flags = sqeLink
		}
		r.sqes[(tail+uint32(i))&r.sqMask] = s
	}
	r.sqTail.Store(tail + uint32(len(ops))) // publishes the submissions to the kernel

	toSubmit, done := len(ops), 0
	for done < len(ops) {
		n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(toSubmit),
			uintptr(len(ops)-done), enterGetEvents, 0, 0)
		switch errno {
		case 0:
			toSubmit -= int(n)
		case unix.EINTR, unix.EAGAIN, unix.EBUSY:
			// A signal (the Go runtime sends them to preempt), or the kernel
			// is short of memory for a moment: nothing was submitted.
		default:
			return os.NewSyscallError("io_uring_enter", errno)
		}
		done += r.reap(res)
	}
	return nil
}

// reap takes what is complete out of the completion ring.
func (r *Ring) reap(res []int32) int {
	head, tail := r.cqHead.Load(), r.cqTail.Load()
	for i := head; i != tail; i++ {
		c := &r.cqes[i&r.cqMask]
		res[c.userData] = c.res
	}
	r.cqHead.Store(tail)
	return int(tail - head)
}
