package team

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/holdfast/bench/internal/exchange"
	"example.com/holdfast/bench/internal/pingpong"
	"example.com/holdfast/bench/internal/rig"
	"example.com/holdfast/hca"
)

// Serve is rank 1 of a team of two processes: it opens its device and does
// what rank 0 says until it says to leave. What fails on the way, the device
// that cannot be opened too, rank 0 hears and decides about. Errors: that the
// exchange or rank 0 is gone, and what failed after rank 0 said to leave.
func Serve(x exchange.Exchange, open func() (*rig.Rig, error)) (err error) {
	g, failed := open()
	hello := answer{Failed: failure(failed)}
	w := worker{x: x, rig: g}
	if failed == nil {
		hello.Notes = g.Lines()
		defer func() { err = errors.Join(err, w.close(), g.Close()) }()
	}
	err = within(setupTime, func(ctx context.Context) error { return put(ctx, x, keyHere, hello) })
	if err != nil || failed != nil {
		return err
	}
	for n := 0; ; n++ {
		var o order
		err := within(idleTime, func(ctx context.Context) (err error) {
			o, err = get[order](ctx, x, 0, keyDo(n))
			return err
		})
		if err != nil || o.Do == doLeave {
			return err
		}
		a := w.do(n, o)
		if err := within(setupTime, func(ctx context.Context) error { return put(ctx, x, keyDid(n), a) }); err != nil {
			return err
		}
	}
}

// within bounds f by a time.
func within(d time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), d, fmt.Errorf("not within %v", d))
	defer cancel()
	return f(ctx)
}

// worker is rank 1 between two orders.
type worker struct {
	x    exchange.Exchange
	rig  *rig.Rig
	seat *seat // nil: no pair
}

// do carries out order number n.
func (w *worker) do(n int, o order) (a answer) {
	var err error
	if w.seat == nil && (o.Do == doPrepare || o.Do == doPlay) {
		return answer{Failed: failure(fmt.Errorf("%s before %s", o.Do, doOpen))}
	}
	switch o.Do {
	case doOpen:
		a.Addr, err = w.open(o)
	case doPrepare:
		err = w.seat.prepare(o.Kind, o.Bytes)
	case doPlay:
		a.Sample, err = w.play(n, o)
	case doClose:
		err = w.close()
	default:
		err = fmt.Errorf("an order %q that rank 1 does not know", o.Do)
	}
	a.Failed = failure(err)
	return a
}

func (w *worker) open(o order) (addr hca.QPAddr, err error) {
	if err := w.close(); err != nil {
		return addr, err
	}
	if w.seat, err = newSeat(w.rig, 1, o.Backend); err != nil {
		return addr, err
	}
	return w.seat.rank.End.Addr(), w.seat.rank.End.Connect(o.Addr)
}

func (w *worker) play(n int, o order) (pingpong.Sample, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), idleTime, fmt.Errorf("not within %v", idleTime))
	defer cancel()
	s, heard, stop, err := playBeside(ctx, w.x, 0, keyMine(n), func(ctx context.Context) (pingpong.Sample, error) {
		return w.seat.play(ctx, o.Seed, o.Warm, o.N)
	})
	stop(context.Canceled) // rank 0 hears of this part's end, and says what is next
	<-heard
	return s, err
}

func (w *worker) close() error {
	s := w.seat
	w.seat = nil
	if s == nil {
		return nil
	}
	return s.close()
}
