package hcasim

import (
	"errors"
	"os"

	"example.com/holdfast/hcasim/internal/uring"
	"golang.org/x/sys/unix"
)

// move sends src through the wire into dst: for each chunk a write into the
// pipe linked to a read out of it, a few chunks in one submission. The pipe
// does not block, so no step waits: the kernel has done all of them when the
// system call returns. A step that fails or falls short cancels those behind
// it, and tells by its place whose memory it was.
func (h *ringHost) move(dst, src span) side {
	h.mu.Lock()
	defer h.mu.Unlock()
	for tries := 0; src.len > 0; tries++ {
		if h.dead || tries > maxTries {
			return sideWire
		}
		n, moved := h.load(dst, src)
		if err := h.ring.Do(h.ops[:n], h.res[:n]); err != nil {
			h.dead = true // what the kernel still holds is not known
			return sideWire
		}
		if bad := h.firstBad(n); bad >= 0 {
			if err := h.clearWire(); err != nil {
				h.dead = true
				return sideWire
			}
			switch errno := unix.Errno(-h.res[bad]); {
			case errno == unix.EINTR || errno == unix.EAGAIN:
				continue // the chunks are sent again: the same bytes to the same place
			case h.res[bad] < 0 && errno != unix.EFAULT:
				return sideWire
			case h.ops[bad].Write:
				return sideSource
			default:
				return sideTarget
			}
		}
		src.addr, src.len = src.addr+moved, src.len-moved
		dst.addr += moved
		tries = -1 // 0 for the next batch
	}
	return sideNone
}

// maxTries is how often a batch is sent again that a signal or a moment
// without memory cut short, before the wire counts as broken.
const maxTries = 100

// load fills ops with the next batch and says how many there are and how many
// bytes they move.
func (h *ringHost) load(dst, src span) (n int, moved uint64) {
	for n < len(h.ops) && moved < src.len {
		chunk := uint32(min(src.len-moved, uint64(h.room)))
		h.ops[n] = uring.Op{Write: true, Link: true, FD: h.pipe[1], Buf: src.reg.slot, Addr: src.addr + moved, Len: chunk}
		h.ops[n+1] = uring.Op{Link: true, FD: h.pipe[0], Buf: dst.reg.slot, Addr: dst.addr + moved, Len: chunk}
		n += 2
		moved += uint64(chunk)
	}
	h.ops[n-1].Link = false
	return n, moved
}

// firstBad is the first of the n operations that did not do all it should, -1
// if there is none.
func (h *ringHost) firstBad(n int) int {
	for i := range n {
		if h.res[i] != int32(h.ops[i].Len) {
			return i
		}
	}
	return -1
}

// clearWire throws away what a transfer that failed left in the pipe. Without
// it the next transfer would receive it.
func (h *ringHost) clearWire() error {
	for {
		_, err := unix.Read(int(h.pipe[0]), h.sink)
		switch {
		case err == nil || errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return nil
		default:
			return errors.Join(h.closeWire(), h.newWire())
		}
	}
}

func (h *ringHost) newWire() error {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return os.NewSyscallError("pipe2", err)
	}
	h.pipe = [2]int32{int32(p[0]), int32(p[1])}
	room, err := unix.FcntlInt(uintptr(p[1]), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		return errors.Join(os.NewSyscallError("fcntl(F_GETPIPE_SZ)", err), h.closeWire())
	}
	h.room = uint32(room)
	return nil
}

func (h *ringHost) closeWire() error {
	var errs []error
	for i, fd := range h.pipe {
		if fd >= 0 {
			errs = append(errs, os.NewSyscallError("close", unix.Close(int(fd))))
		}
		h.pipe[i] = -1
	}
	return errors.Join(errs...)
}
