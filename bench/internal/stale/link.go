package stale

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"example.com/holdfast/bench/internal/memory"
	"example.com/holdfast/bench/internal/msg"
	"example.com/holdfast/bench/internal/pattern"
	"example.com/holdfast/hca"
)

// link is a connection to a peer that checks what it is sent and sends back
// something that can be checked. Its buffer is mapped once and registered anew
// for each transfer.
type link struct {
	own, peer *msg.Endpoint
	buf       []byte // the peer's
	mapper    memory.Mapper
	seed      uint64 // of the next round; both ends count alike
	cancel    context.CancelCauseFunc
	ctx       context.Context
	done      chan error // what ended the peer
	wrong     atomic.Int64
}

// newLink connects a new endpoint on dev[0], whose buffers are registered by
// reg, to a peer on dev[1], whose buffers are registered by peerReg. Messages
// have n bytes. seed is the first of the patterns.
func newLink(ctx context.Context, dev [2]hca.Device, reg, peerReg msg.Registrar, m memory.Mapper, n int, seed uint64) (l *link, err error) {
	l = &link{mapper: m, seed: seed, done: make(chan error, 1)}
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	defer func() {
		if err != nil {
			l.cancel(err)
			err = errors.Join(err, l.free())
		}
	}()
	if l.own, err = msg.NewEndpoint(dev[0], reg); err != nil {
		return nil, err
	}
	if l.peer, err = msg.NewEndpoint(dev[1], peerReg); err != nil {
		return nil, err
	}
	if err = msg.Join(l.own, l.peer); err != nil {
		return nil, err
	}
	b, err := m.Map(memory.Pages(n))
	if err != nil {
		return nil, err
	}
	l.buf = b[:n]
	go func() { l.done <- l.serve(seed) }()
	return l, nil
}

// errDone ends the peer when there are no more rounds.
var errDone = errors.New("no more rounds")

// serve is the peer.
func (l *link) serve(seed uint64) (err error) {
	defer func() {
		if context.Cause(l.ctx) == errDone {
			err = nil
			return
		}
		l.cancel(fmt.Errorf("peer: %w", err)) // the other end does not wait for ever
	}()
	for ; ; seed += 2 {
		if _, err := l.peer.Recv(l.ctx, l.buf); err != nil {
			return err
		}
		if pattern.Wrong(l.buf, seed) != 0 {
			l.wrong.Add(1)
		}
		pattern.Fill(l.buf, seed+1)
		if err := l.peer.Send(l.ctx, l.buf); err != nil {
			return err
		}
	}
}

// perRound is how many transfers a round has: so many that a cache that knows
// what it does finds the registration of the first ones for the others.
const perRound = 4

// round writes b, sends it, receives into it and checks it, twice.
func (l *link) round(b []byte) error {
	for range perRound / 2 {
		if err := l.exchange(b); err != nil {
			return err
		}
	}
	return nil
}

func (l *link) exchange(b []byte) error {
	seed := l.seed
	l.seed += 2
	pattern.Fill(b, seed)
	if err := l.own.Send(l.ctx, b); err != nil {
		return l.cause(err)
	}
	if _, err := l.own.Recv(l.ctx, b); err != nil {
		return l.cause(err)
	}
	if pattern.Wrong(b, seed+1) != 0 {
		l.wrong.Add(1)
	}
	return nil
}

// cause is the error that ended the link, where err is only its echo.
func (l *link) cause(err error) error {
	if c := context.Cause(l.ctx); c != nil && errors.Is(err, context.Canceled) {
		return c
	}
	return err
}

// close ends the peer and gives everything back. It says how many transfers
// were wrong.
func (l *link) close() (wrong int, err error) {
	l.cancel(errDone)
	err = <-l.done
	return int(l.wrong.Load()), errors.Join(err, l.free())
}

func (l *link) free() error {
	var errs []error
	if l.own != nil {
		errs = append(errs, l.own.Close())
	}
	if l.peer != nil {
		errs = append(errs, l.peer.Close())
	}
	if l.buf != nil {
		errs = append(errs, l.mapper.Unmap(l.buf[:memory.Pages(len(l.buf))]))
	}
	return errors.Join(errs...)
}
