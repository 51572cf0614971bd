package team

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/holdfast/bench/internal/exchange"
	"example.com/holdfast/bench/internal/memory"
	"example.com/holdfast/bench/internal/pingpong"
	"example.com/holdfast/bench/internal/rig"
)

// driver is rank 0 of a team of two processes.
type driver struct {
	x       exchange.Exchange
	rig     *rig.Rig
	notes   [][2]string
	orders  int           // given so far
	gone    bool          // rank 1, or the exchange
	parting time.Duration // partingTime
}

// meet waits for rank 1 to have its device open.
func meet(ctx context.Context, x exchange.Exchange, g *rig.Rig) (*driver, error) {
	a, err := get[answer](ctx, x, 1, keyHere)
	if err = errors.Join(err, a.Failed.err()); err != nil {
		return nil, err
	}
	return &driver{x: x, rig: g, notes: bothNotes(g.Lines(), a.Notes), parting: partingTime}, nil
}

// bothNotes are the lines of rank 0, and those of rank 1 that differ.
func bothNotes(mine, theirs [][2]string) [][2]string {
	notes := append([][2]string{{"Ranks", "each in a process of its own"}}, mine...)
	for i, line := range theirs {
		if i >= len(mine) || line != mine[i] {
			notes = append(notes, [2]string{line[0] + ", rank 1", line[1]})
		}
	}
	return notes
}

// do gives an order, does rank 0's own part of it, which may be nothing, and
// waits for rank 1's.
func (d *driver) do(ctx context.Context, o order, own func() error) (answer, error) {
	n, err := d.give(ctx, o)
	if err != nil {
		return answer{}, err
	}
	var ownErr error
	if own != nil {
		ownErr = own()
	}
	a, err := get[answer](ctx, d.x, 1, keyDid(n))
	return a, errors.Join(ownErr, d.note(err), a.Failed.err())
}

// note remembers from an error of the exchange that there is nobody to give
// orders to any more, so that it is said once.
func (d *driver) note(err error) error {
	var lost *exchange.LostError
	d.gone = d.gone || errors.As(err, &lost) || errors.Is(err, exchange.ErrGone)
	return err
}

func (d *driver) give(ctx context.Context, o order) (n int, err error) {
	n = d.orders
	d.orders++
	return n, d.note(put(ctx, d.x, keyDo(n), o))
}

// pair makes a pair.
func (d *driver) pair(backend string) (p *processPair, err error) {
	p = &processPair{d: d}
	if p.seat, err = newSeat(d.rig, 0, backend); err != nil {
		return nil, err
	}
	err = within(setupTime, func(ctx context.Context) error {
		a, err := d.do(ctx, order{Do: doOpen, Backend: backend, Addr: p.seat.rank.End.Addr()}, nil)
		if err != nil {
			return err
		}
		return p.seat.rank.End.Connect(a.Addr)
	})
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// leave tells rank 1 to end.
func (d *driver) leave() error {
	if d.gone {
		return nil
	}
	return within(d.parting, func(ctx context.Context) error {
		_, err := d.give(ctx, order{Do: doLeave})
		return err
	})
}

// processPair is a Pair as rank 0 has it.
type processPair struct {
	d    *driver
	seat *seat
	seed uint64
}

var _ Pair = (*processPair)(nil)

func (p *processPair) Name() string { return p.seat.side.Name }

func (p *processPair) Prepare(ctx context.Context, kind memory.Kind, n int) error {
	_, err := p.d.do(ctx, order{Do: doPrepare, Kind: kind, Bytes: n}, func() error { return p.seat.prepare(kind, n) })
	return err
}

func (p *processPair) Play(ctx context.Context, warm, n int) (pingpong.Sample, error) {
	o := order{Do: doPlay, Seed: p.seed, Warm: warm, N: n}
	p.seed += pingpong.Seeds(warm, n)
	number, err := p.d.give(ctx, o)
	if err != nil {
		return pingpong.Sample{}, err
	}
	mine, heard, stop, err := playBeside(ctx, p.d.x, 1, keyDid(number), func(ctx context.Context) (pingpong.Sample, error) {
		return p.seat.play(ctx, o.Seed, warm, n)
	})
	defer stop(nil)
	// Rank 1 hears of a failure by this, and cannot be done much later than we.
	parting := time.AfterFunc(p.d.parting, func() { stop(fmt.Errorf("not within %v after rank 0 was done", p.d.parting)) })
	defer parting.Stop()
	err = errors.Join(err, within(p.d.parting, func(ctx context.Context) error {
		return put(ctx, p.d.x, keyMine(number), answer{Failed: failure(err)})
	}))
	theirs := <-heard
	if d := p.d; d.note(theirs.err) != nil && !errors.Is(err, theirs.err) {
		err = errors.Join(err, theirs.err)
	}
	if err != nil {
		return pingpong.Sample{}, err
	}
	return pingpong.Slower(mine, theirs.answer.Sample), theirs.answer.Failed.err()
}

// Close closes both ends. Rank 1's is done before rank 0 goes on, since the
// next pair may need what this one had pinned.
func (p *processPair) Close() error {
	if p.d.gone {
		return p.seat.close()
	}
	return within(setupTime, func(ctx context.Context) error {
		_, err := p.d.do(ctx, order{Do: doClose}, p.seat.close)
		return err
	})
}
