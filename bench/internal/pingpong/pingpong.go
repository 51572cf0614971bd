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
	Number  int // 0 sends first, 1 receives first
	End     *msg.Endpoint
	Buffers memory.Source
	Meet    Barrier
}

// Barrier is how the two ranks wait for each other.
type Barrier interface {
	// Wait returns when the other rank has come to it as often as this one
	// has. Errors: the context's, and those of what the ranks meet over.
	Wait(ctx context.Context) error
}

// Sample is what n repetitions measured. Times are of one message, in
// microseconds.
type Sample struct {
	N      int
	Avg    float64
	Median float64
	Wrong  int // bytes that were not what had been sent
}

// Slower is the sample of a game whose ranks measured a and b: of each time
// that of the slower rank, and the wrong bytes of both.
func Slower(a, b Sample) Sample {
	return Sample{N: a.N, Avg: max(a.Avg, b.Avg), Median: max(a.Median, b.Median), Wrong: a.Wrong + b.Wrong}
}

// Game is a pair of ranks in this process, and the count of repetitions that
// they have played, so that no two repetitions have the same pattern.
type Game struct {
	Ranks [2]Rank // End and Buffers are enough
	Seed  uint64  // of the next repetition; each takes two
}

// Play has both ranks play at once. It returns when both are done. Errors: of
// the first rank that had one; the connection is then not usable any more.
func (g *Game) Play(ctx context.Context, warm, n int) (Sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		bar     barrier
		samples [2]Sample
		errs    [2]error
		ranks   sync.WaitGroup
	)
	for i := range g.Ranks {
		r := g.Ranks[i]
		r.Number, r.Meet = i, side{&bar, i}
		ranks.Go(func() {
			if samples[i], errs[i] = r.Play(ctx, g.Seed, warm, n); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	ranks.Wait()
	g.Seed += Seeds(warm, n)
	if errs[0] != nil || errs[1] != nil {
		// The rank that had to stop because the other did has the other's
		// error as its cause; the cause of the context is the first of all.
		return Sample{}, context.Cause(ctx)
	}
	return Slower(samples[0], samples[1]), nil
}

// Seeds is how many seeds a game takes: two for each repetition.
func Seeds(warm, n int) uint64 { return 2 * uint64(warm+n) }

// Play is one rank's part of a game: warm repetitions that are not measured
// and n, at least one, that are, with patterns from seed on. The other rank
// has to play the same. Bytes are checked in all of them. Errors: of the
// buffers, the endpoint and the barrier, with the rank's number.
func (r *Rank) Play(ctx context.Context, seed uint64, warm, n int) (s Sample, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("rank %d: %w", r.Number, err)
		}
	}()
	times := make([]time.Duration, 0, n)
	wrong := 0
	for i := range warm + n {
		d, bad, err := r.repeat(ctx, seed+Seeds(i, 0), i)
		if err != nil {
			return Sample{}, err
		}
		wrong += bad
		if i >= warm {
			times = append(times, d)
		}
	}
	// What this rank does next must not fall into the other's last repetition.
	if err := r.Meet.Wait(ctx); err != nil {
		return Sample{}, err
	}
	s = summary(times)
	s.Wrong = wrong
	return s, nil
}

// repeat is one repetition, number i. The buffers go back in any case.
func (r *Rank) repeat(ctx context.Context, seed uint64, i int) (timed time.Duration, wrong int, err error) {
	start := time.Now()
	send, recv, err := r.Buffers.Take(i)
	timed += time.Since(start)
	if err != nil {
		return 0, 0, err
	}
	pattern.Fill(send, seed+uint64(r.Number))
	if err := r.Meet.Wait(ctx); err != nil {
		return 0, 0, errors.Join(err, r.Buffers.Give(send, recv))
	}

	start = time.Now()
	if err := r.exchange(ctx, send, recv); err != nil {
		return 0, 0, errors.Join(err, r.Buffers.Give(send, recv))
	}
	timed += time.Since(start)

	wrong = pattern.Wrong(recv, seed+uint64(1-r.Number))
	if err := r.Meet.Wait(ctx); err != nil {
		return 0, 0, errors.Join(err, r.Buffers.Give(send, recv))
	}
	start = time.Now()
	err = r.Buffers.Give(send, recv)
	return timed + time.Since(start), wrong, err
}

// exchange is the two messages: rank 0 sends first.
func (r *Rank) exchange(ctx context.Context, send, recv []byte) error {
	if r.Number == 0 {
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

// summary turns the times of a rank's repetitions, which it sorts, into those
// of a message: half of each.
func summary(times []time.Duration) Sample {
	n := len(times)
	slices.Sort(times)
	var sum time.Duration
	for _, d := range times {
		sum += d
	}
	return Sample{N: n, Avg: usec(sum) / float64(2*n), Median: usec(times[n/2]+times[(n-1)/2]) / 4}
}

func usec(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
