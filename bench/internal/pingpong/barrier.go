package pingpong

import (
	"context"
	"runtime"
	"sync/atomic"

	"example.com/holdfast/bench/internal/msg"
)

// barrier lets two goroutines of one process wait for each other again and
// again. It spins: who goes through first should not be the one that was woken
// last.
type barrier struct {
	at [2]struct {
		round atomic.Uint64
		_     [56]byte // a cache line each
	}
}

// wait returns when both ranks have come to it as often as this one has, or
// with the context's error.
func (b *barrier) wait(ctx context.Context, rank int) error {
	round := b.at[rank].round.Add(1)
	for b.at[1-rank].round.Load() < round {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		default:
			runtime.Gosched()
		}
	}
	return nil
}

// side is a barrier as one rank sees it.
type side struct {
	b    *barrier
	rank int
}

func (s side) Wait(ctx context.Context) error { return s.b.wait(ctx, s.rank) }

// Messages is the barrier of ranks in two processes: a message each way over
// the queue pair.
type Messages struct{ End *msg.Endpoint }

// Wait is Endpoint.Barrier.
func (m Messages) Wait(ctx context.Context) error { return m.End.Barrier(ctx) }
