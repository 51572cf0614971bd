package exchange

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// protocol is the name in the first eight bytes of each side; the eighth is
// the version.
const (
	protocol = "holdfst"
	version  = 1
)

// maxFrame is the longest frame, in bytes: a value of MaxValue as JSON has it,
// and room for the rest.
const maxFrame = 2*MaxValue + 4096

// request is what a client asks.
type request struct {
	ID    uint64
	Op    string // opPut, opGet, opLeave
	Rank  int    `json:",omitempty"` // opGet
	Key   string `json:",omitempty"`
	Value []byte `json:",omitempty"` // opPut
}

const (
	opPut   = "put"
	opGet   = "get"
	opLeave = "leave" // ends the connection in order; there is no answer
)

// reply answers the request of that number; a ticket has number 0.
type reply struct {
	ID      uint64
	Value   []byte     `json:",omitempty"`
	Refused string     `json:",omitempty"` // why
	Lost    *LostError `json:",omitempty"`
}

// hello writes the first eight bytes.
func hello(w io.Writer) error {
	_, err := w.Write(append([]byte(protocol), version))
	return err
}

// errStranger is what begins otherwise than the protocol does.
var errStranger = errors.New("it does not speak this protocol")

// heardHello reads the other side's first eight bytes. An error that is none of
// the connection's wraps errStranger or names the version.
func heardHello(r io.Reader) error {
	var b [len(protocol) + 1]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return err
	}
	if string(b[:len(protocol)]) != protocol {
		return fmt.Errorf("%w: it began with %q", errStranger, b[:])
	}
	if v := b[len(protocol)]; v != version {
		return fmt.Errorf("it speaks version %d of the protocol, this is version %d", v, version)
	}
	return nil
}

// send writes v as a frame, within patience.
func send(c net.Conn, v any, patience time.Duration) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := c.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err = c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// receive reads a frame into v. It waits for its beginning as long as it
// takes, unless the caller has set a deadline, and for the rest within
// patience. Errors: io.EOF where the connection ended between two frames.
func receive(c net.Conn, v any, patience time.Duration) error {
	var head [4]byte
	if _, err := io.ReadFull(c, head[:1]); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, head[1:]); err != nil {
		return midFrame(err)
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || n > maxFrame {
		return fmt.Errorf("it sent garbage: a frame of %d bytes", n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(c, body); err != nil {
		return midFrame(err)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("it sent garbage: %w", err)
	}
	return c.SetReadDeadline(time.Time{})
}

func midFrame(err error) error { return fmt.Errorf("in the middle of a frame: %w", err) }
