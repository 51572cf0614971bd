package pingpong

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"example.com/holdfast/bench/internal/memory"
	"example.com/holdfast/bench/internal/msg"
	"example.com/holdfast/bench/internal/pattern"
)

// Rank is one of the two that play.
type Rank struct {
	End     *msg.Endpoint
	Buffers memory.Source
}

// Sample is what one run of n repetitions measured. Times are of one message,
// in microseconds.
type Sample struct {
	N      int
	Avg    float64
	Median float64
	Wrong  int // bytes that were not what had been sent
}

// Game is a pair of ranks, and the count of repetitions that they have played,
// so that no two repetitions have the same pattern.
type Game struct {
	Ranks [2]Rank
	Seed  uint64 // of the next repetition; each takes two
}

// Play runs warm repetitions that are not measured and n, at least one, that are. Bytes are
// checked in all of them. It returns when both ranks are done. Errors: of the
// first rank that had one; the connection is then not usable any more.
func (g *Game) Play(ctx context.Context, warm, n int) (Sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		bar   barrier
		times [2][]time.Duration
		wrong [2]int
		errs  [2]error
		ranks sync.WaitGroup
	)
	for rank := range g.Ranks {
		times[rank] = make([]time.Duration, 0, n)
		ranks.Go(func() {
			for i := range warm + n {
				d, bad, err := g.repeat(ctx, &bar, rank, i)
				if err != nil {
					errs[rank] = fmt.Errorf("rank %d: %w", rank, err)
					cancel(errs[rank])
					return
				}
				wrong[rank] += bad
				if i >= warm {
					times[rank] = append(times[rank], d)
				}
			}
		})
	}
	ranks.Wait()
	g.Seed += 2 * uint64(warm+n)
	if errs[0] != nil || errs[1] != nil {
		// The rank that had to stop because the other did has the other's
		// error as its cause; the cause of the context is the first of all.
		return Sample{}, context.Cause(ctx)
	}
	return summary(times, wrong[0]+wrong[1]), nil
}

// repeat is one repetition of one rank. The buffers go back in any case.
func (g *Game) repeat(ctx context.Context, bar *barrier, rank, i int) (timed time.Duration, wrong int, err error) {
	r := &g.Ranks[rank]
	seed := g.Seed + 2*uint64(i)

	start := time.Now()
	send, recv, err := r.Buffers.Take(i)
	timed += time.Since(start)
	if err != nil {
		return 0, 0, err
	}
	pattern.Fill(send, seed+uint64(rank))
	if err := bar.wait(ctx, rank); err != nil {
		return 0, 0, errors.Join(err, r.Buffers.Give(send, recv))
	}

	start = time.Now()
	if err := r.exchange(ctx, rank, send, recv); err != nil {
		return 0, 0, errors.Join(err, r.Buffers.Give(send, recv))
	}
	timed += time.Since(start)

	wrong = pattern.Wrong(recv, seed+uint64(1-rank))
	if err := bar.wait(ctx, rank); err != nil {
		return 0, 0, errors.Join(err, r.Buffers.Give(send, recv))
	}
	start = time.Now()
	err = r.Buffers.Give(send, recv)
	return timed + time.Since(start), wrong, err
}

// exchange is the two messages: rank 0 sends first.
func (r *Rank) exchange(ctx context.Context, rank int, send, recv []byte) error {
	if rank == 0 {
		if err := r.End.Send(ctx, send); err != nil {
			return err
		}
		return r.receive(ctx, recv)
	}
	if err := r.receive(ctx, recv); err != nil {
		return err
	}
	return r.End.Send(ctx, send)
}

func (r *Rank) receive(ctx context.Context, b []byte) error {
	n, err := r.End.Recv(ctx, b)
	if err == nil && n != len(b) {
		err = fmt.Errorf("message of %d bytes arrived where %d were sent", n, len(b))
	}
	return err
}

// summary turns the times of the repetitions into those of a message: half of
// each; the average is that of the slower rank, the median that of the slower
// rank of each repetition.
func summary(times [2][]time.Duration, wrong int) Sample {
	n := len(times[0])
	s := Sample{N: n, Wrong: wrong}
	slower := make([]time.Duration, n)
	var sums [2]time.Duration
	for i := range n {
		slower[i] = max(times[0][i], times[1][i])
		sums[0] += times[0][i]
		sums[1] += times[1][i]
	}
	slices.Sort(slower)
	s.Avg = usec(max(sums[0], sums[1])) / float64(2*n)
	s.Median = usec(slower[n/2]+slower[(n-1)/2]) / 4
	return s
}

func usec(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
