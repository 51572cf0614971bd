package odpbackend

import (
	"fmt"

	"example.com/holdfast/hca"
)

// Mode is the kind of registrations a Backend makes.
type Mode uint8

// The modes, see the package comment.
const (
	ModeAuto    Mode = iota // the best that the device has; never what a Backend reports
	ModeWhole               // one for the whole address space
	ModeWindows             // overlapping windows of address space
	ModeRange               // one for each range
)

// String names the mode.
func (m Mode) String() string {
	switch m {
	case ModeAuto:
		return "auto"
	case ModeWhole:
		return "whole address space"
	case ModeWindows:
		return "windows"
	case ModeRange:
		return "range by range"
	}
	return fmt.Sprintf("unknown mode %d", uint8(m))
}

// DefaultWindow is the size of a window where Config leaves it open: 1 GiB. A
// device keeps about 8 bytes a page for an on-demand registration, 2 MiB for a
// window of this size, and a process with 64 GiB of buffers needs some 128.
const DefaultWindow = 1 << 30

// minWindow is the smallest window that is worth its key. Buffers are then at
// least half of that before they need a registration of their own.
const minWindow = 1 << 20

// baseOps is what a message library does on a reliable connection.
const baseOps = hca.ODPSend | hca.ODPRecv | hca.ODPWrite | hca.ODPRead

// Config says what New is to make. The zero value is sensible.
type Config struct {
	// Mode forces one kind of registration; New fails if the device does not
	// have it. Zero (ModeAuto): the best that it has.
	Mode Mode

	// Window is the size of a window in bytes, a power of two of at least
	// 1 MiB. Zero: DefaultWindow. It is made smaller, by halves, where the
	// device's longest registration is shorter.
	Window uint64

	// Ops are the operations on reliable connections that will touch the
	// memory. Using on-demand memory for an operation that the device does not
	// support on it is undefined in verbs, so New refuses a device that lacks
	// one of them. Zero: send, receive, RDMA write and RDMA read.
	Ops hca.ODPOps
}

// validate says what is wrong, naming the field, and fills in what is left
// open.
func (c *Config) validate() error {
	bad := func(detail string) error {
		return &hca.OpError{Op: "odpbackend.New", Detail: detail, Err: hca.ErrInvalid}
	}
	if c.Mode > ModeRange {
		return bad("Config.Mode: " + c.Mode.String())
	}
	if c.Window == 0 {
		c.Window = DefaultWindow
	}
	if c.Window < minWindow || c.Window&(c.Window-1) != 0 {
		return bad(fmt.Sprintf("Config.Window: %d is not a power of two of at least %v", c.Window, hca.Bytes(minWindow)))
	}
	if c.Ops == 0 {
		c.Ops = baseOps
	}
	return nil
}
