package msg

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"example.com/holdfast/hca"
)

const (
	// slots is how many receives for control are posted ahead. The peer can
	// have four messages under way: where its next message may go, the end of
	// one of ours, and that it came to a barrier and to the next.
	slots = 8
	// slotSize is room for one control message: address, length, rkey.
	slotSize = 24
)

// Endpoint is one end of a connection.
type Endpoint struct {
	dev  hca.Device
	reg  Registrar
	cq   hca.CQ
	qp   hca.QP
	ctl  []byte // slots to receive into, and behind them one to send from
	mr   *hca.MR
	seq  uint32 // messages sent, for the immediate
	rseq uint32 // messages received

	barriers uint32 // come to by this end
	met      uint32 // come to by the peer

	// What completed and nobody asked for yet.
	offers  []offer
	arrived []hca.WC
	sent    int // own sends and writes
	wc      [slots]hca.WC
}

// offer says where the peer wants its next message.
type offer struct {
	to  hca.RemoteAddr
	len uint64
}

// NewEndpoint makes an endpoint on dev that takes registrations of users'
// buffers from reg. Errors are those of the device.
func NewEndpoint(dev hca.Device, reg Registrar) (e *Endpoint, err error) {
	e = &Endpoint{dev: dev, reg: reg, ctl: make([]byte, (slots+1)*slotSize)}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	if e.mr, err = dev.Register(hca.RangeOf(e.ctl), hca.LocalWrite); err != nil {
		return e, err
	}
	if e.cq, err = dev.NewCQ(4 * slots); err != nil {
		return e, err
	}
	if e.qp, err = dev.NewQP(hca.QPConfig{SendCQ: e.cq, MaxSend: slots, MaxRecv: slots}); err != nil {
		return e, err
	}
	for i := range slots {
		if err = e.postSlot(i); err != nil {
			return e, err
		}
	}
	return e, nil
}

// Addr is what the peer needs for Connect.
func (e *Endpoint) Addr() hca.QPAddr { return e.qp.Addr() }

// Connect ties the endpoint to its peer's. Both have to do it before the first
// message. Errors are those of the device.
func (e *Endpoint) Connect(peer hca.QPAddr) error { return e.qp.Connect(peer) }

// Join connects two endpoints to each other.
func Join(a, b *Endpoint) error {
	if err := a.Connect(b.Addr()); err != nil {
		return err
	}
	return b.Connect(a.Addr())
}

// Close gives everything back to the device. Registrations of users' buffers
// are the registrar's.
func (e *Endpoint) Close() error {
	var errs []error
	if e.qp != nil {
		errs = append(errs, e.qp.Close())
	}
	if e.cq != nil {
		errs = append(errs, e.cq.Close())
	}
	if e.mr != nil {
		errs = append(errs, e.dev.Deregister(e.mr))
	}
	e.qp, e.cq, e.mr = nil, nil, nil
	return errors.Join(errs...)
}

// Send sends b to the peer and returns when it has arrived in the buffer of
// the peer's Recv. Errors: of the registrar, of the device, a completion
// status as hca.WCStatus, hca.ErrTooLong where the peer's buffer is shorter,
// and the context's. After an error the connection is not usable.
func (e *Endpoint) Send(ctx context.Context, b []byte) error {
	reg, err := e.acquire(b, hca.LocalRead)
	if err != nil {
		return err
	}
	return errors.Join(e.send(ctx, b, reg), e.release(b, reg))
}

func (e *Endpoint) send(ctx context.Context, b []byte, reg Registration) error {
	for len(e.offers) == 0 {
		if err := e.progress(ctx); err != nil {
			return err
		}
	}
	to := e.offers[0]
	e.offers = e.offers[:copy(e.offers, e.offers[1:])]
	if uint64(len(b)) > to.len {
		return &hca.OpError{Op: "send", Device: e.dev.Attr().Name, Range: hca.RangeOf(b),
			Detail: fmt.Sprintf("the peer receives at most %d bytes", to.len), Err: hca.ErrTooLong}
	}
	e.seq++
	wr := hca.SendWR{Op: hca.RDMAWriteWithImm, Imm: e.seq, Remote: to.to}
	if len(b) > 0 {
		wr.SGE = hca.SGE{Addr: hca.RangeOf(b).Addr, Len: uint64(len(b)), LKey: reg.LKey}
	}
	if err := e.qp.PostSend(wr); err != nil {
		return err
	}
	return e.waitSent(ctx)
}

// Recv receives the peer's next message into b and says how long it was.
// Errors as Send.
func (e *Endpoint) Recv(ctx context.Context, b []byte) (int, error) {
	reg, err := e.acquire(b, hca.LocalWrite|hca.RemoteWrite)
	if err != nil {
		return 0, err
	}
	n, err := e.recv(ctx, b, reg)
	return n, errors.Join(err, e.release(b, reg))
}

func (e *Endpoint) recv(ctx context.Context, b []byte, reg Registration) (int, error) {
	own := e.ctl[slots*slotSize:]
	binary.LittleEndian.PutUint64(own[0:], hca.RangeOf(b).Addr)
	binary.LittleEndian.PutUint64(own[8:], uint64(len(b)))
	binary.LittleEndian.PutUint32(own[16:], reg.RKey)
	if err := e.qp.PostSend(hca.SendWR{Op: hca.Send, SGE: e.slotSGE(slots)}); err != nil {
		return 0, err
	}
	// The slot is free to be written again only when it was sent.
	if err := e.waitSent(ctx); err != nil {
		return 0, err
	}
	for len(e.arrived) == 0 {
		if err := e.progress(ctx); err != nil {
			return 0, err
		}
	}
	wc := e.arrived[0]
	e.arrived = e.arrived[:copy(e.arrived, e.arrived[1:])]
	if e.rseq++; wc.Imm != e.rseq {
		return 0, fmt.Errorf("message %d arrived where %d was expected", wc.Imm, e.rseq)
	}
	return int(wc.Len), nil
}

// acquire gets a registration; a message of no bytes needs none.
func (e *Endpoint) acquire(b []byte, a hca.Access) (Registration, error) {
	if len(b) == 0 {
		return Registration{}, nil
	}
	return e.reg.Acquire(b, a)
}

func (e *Endpoint) release(b []byte, reg Registration) error {
	if len(b) == 0 {
		return nil
	}
	return e.reg.Release(reg)
}

// waitSent waits for the completion of the one send or write that is under
// way.
func (e *Endpoint) waitSent(ctx context.Context) error {
	for e.sent == 0 {
		if err := e.progress(ctx); err != nil {
			return err
		}
	}
	e.sent--
	return nil
}

// progress waits for completions and sorts them.
func (e *Endpoint) progress(ctx context.Context) error {
	n, err := e.cq.Poll(e.wc[:])
	if err != nil {
		return err
	}
	if n == 0 {
		return e.cq.Wait(ctx)
	}
	for _, wc := range e.wc[:n] {
		if wc.Status != hca.WCSuccess {
			return fmt.Errorf("on %s: %w", e.dev.Attr().Name, wc.Status)
		}
		switch wc.Op {
		case hca.WCSend, hca.WCRDMAWrite:
			e.sent++
			continue
		case hca.WCRecvRDMAWithImm:
			e.arrived = append(e.arrived, wc)
		case hca.WCRecv:
			if wc.HasImm {
				if err := e.meet(wc); err != nil {
					return err
				}
				break
			}
			s := e.ctl[wc.ID*slotSize:]
			e.offers = append(e.offers, offer{
				to:  hca.RemoteAddr{Addr: binary.LittleEndian.Uint64(s[0:]), RKey: binary.LittleEndian.Uint32(s[16:])},
				len: binary.LittleEndian.Uint64(s[8:]),
			})
		default:
			return fmt.Errorf("on %s: unexpected completion of kind %d", e.dev.Attr().Name, wc.Op)
		}
		if err := e.postSlot(int(wc.ID)); err != nil {
			return err
		}
	}
	return nil
}

// postSlot posts receive number i.
func (e *Endpoint) postSlot(i int) error {
	return e.qp.PostRecv(hca.RecvWR{ID: uint64(i), SGE: e.slotSGE(i)})
}

func (e *Endpoint) slotSGE(i int) hca.SGE {
	return hca.SGE{Addr: e.mr.Range.Addr + uint64(i*slotSize), Len: slotSize, LKey: e.mr.LKey}
}
