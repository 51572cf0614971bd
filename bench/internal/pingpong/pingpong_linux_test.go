package pingpong

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/bench/internal/memory"
	"example.com/holdfast/bench/internal/msg"
	"example.com/holdfast/hca"
	"example.com/holdfast/hcasim"
	"example.com/holdfast/internal/childtest"
	"example.com/holdfast/pinbackend"
)

const limit = 60 * time.Second

// game is a game of two ranks on live devices, with buffers of n bytes; wrap
// may put something around the registrar of rank 1.
func game(t *testing.T, k memory.Kind, n int, wrap func(msg.Registrar) msg.Registrar) *Game {
	t.Helper()
	f, err := hcasim.NewFabric(hcasim.FabricConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	g := &Game{}
	for i := range g.Ranks {
		dev, err := hcasim.Open(hcasim.Live{Fabric: f})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, dev.Close()) })
		var reg msg.Registrar = msg.Direct{Backend: pinbackend.New(dev)}
		if i == 1 && wrap != nil {
			reg = wrap(reg)
		}
		end, err := msg.NewEndpoint(dev, reg)
		require.NoError(t, err)
		src, err := memory.NewSource(memory.Raw{}, k, n, 3)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, src.Close()) })
		g.Ranks[i] = Rank{End: end, Buffers: src}
	}
	t.Cleanup(func() { require.NoError(t, errors.Join(g.Ranks[0].End.Close(), g.Ranks[1].End.Close())) })
	require.NoError(t, msg.Join(g.Ranks[0].End, g.Ranks[1].End))
	return g
}

func TestPlay(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		for _, k := range memory.Kinds() {
			for _, n := range []int{0, 1, 5000, 1 << 18} {
				g := game(t, k, n, nil)
				for range 2 {
					seed := g.Seed
					s, err := g.Play(context.Background(), 3, 20)
					require.NoError(t, err)
					require.Equal(t, 20, s.N)
					require.Zero(t, s.Wrong, "%v buffers of %d bytes", k, n)
					require.Positive(t, s.Avg)
					require.Positive(t, s.Median)
					require.Equal(t, seed+46, g.Seed, "no pattern comes twice")
				}
			}
		}
	})
}

// spoiling changes one byte of what was received, every third time.
type spoiling struct {
	msg.Registrar
	count int
	last  []byte
}

func (s *spoiling) Acquire(b []byte, a hca.Access) (msg.Registration, error) {
	s.last = nil
	if a.Has(hca.RemoteWrite) {
		if s.count++; s.count%3 == 0 {
			s.last = b
		}
	}
	return s.Registrar.Acquire(b, a)
}

func (s *spoiling) Release(r msg.Registration) error {
	if s.last != nil {
		s.last[len(s.last)-1]++
	}
	return s.Registrar.Release(r)
}

func TestWrongBytesAreCounted(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		g := game(t, memory.Same, 5000, func(r msg.Registrar) msg.Registrar { return &spoiling{Registrar: r} })
		s, err := g.Play(context.Background(), 6, 9)
		require.NoError(t, err)
		require.Equal(t, 5, s.Wrong, "one byte in each third of 15 repetitions, warm-up included")
	})
}

// failing fails from some time on.
type failing struct {
	msg.Registrar
	left atomic.Int64
	err  error
}

func (f *failing) Acquire(b []byte, a hca.Access) (msg.Registration, error) {
	if f.left.Add(-1) < 0 {
		return msg.Registration{}, f.err
	}
	return f.Registrar.Acquire(b, a)
}

func TestAnErrorOfOneRankEndsBoth(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		for _, k := range memory.Kinds() {
			for _, good := range []int64{0, 1, 6, 7} {
				want := &hca.OpError{Op: "register", Err: hca.ErrNoMemory}
				g := game(t, k, 5000, func(r msg.Registrar) msg.Registrar {
					f := &failing{Registrar: r, err: want}
					f.left.Store(good)
					return f
				})
				_, err := g.Play(context.Background(), 0, 1000)
				require.ErrorIs(t, err, hca.ErrNoMemory, "the first error, not its echo")
				require.ErrorContains(t, err, "rank 1")
			}
		}
	})
}

// dry has buffers for a few repetitions only.
type dry struct {
	memory.Source
	left int
}

var errDry = errors.New("no buffers left")

func (d *dry) Take(i int) (send, recv []byte, err error) {
	if d.left--; d.left < 0 {
		return nil, nil, errDry
	}
	return d.Source.Take(i)
}

// The other rank waits at the barrier then, and not for a message.
func TestARankWithoutBuffersEndsBoth(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		for _, good := range []int{0, 5} {
			g := game(t, memory.Fresh, 5000, nil)
			g.Ranks[1].Buffers = &dry{g.Ranks[1].Buffers, good}
			_, err := g.Play(context.Background(), 0, 1000)
			require.ErrorIs(t, err, errDry)
		}
	})
}

func TestTheContextEndsAGame(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		g := game(t, memory.Same, 8, nil)
		cause := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(context.Background(), 20*time.Millisecond, cause)
		defer cancel()
		_, err := g.Play(ctx, 0, 1<<30)
		require.ErrorIs(t, err, cause)
	})
}

func TestSummary(t *testing.T) {
	us := func(ds ...int) (out []time.Duration) {
		for _, d := range ds {
			out = append(out, time.Duration(d)*time.Microsecond)
		}
		return out
	}
	a, b := summary(us(90, 10, 20)), summary(us(12, 30, 18))
	require.Equal(t, Sample{N: 3, Avg: 20, Median: 10}, a, "120 us for 6 messages; half of 20")
	require.Equal(t, Sample{N: 3, Avg: 10, Median: 9}, b)
	a.Wrong, b.Wrong = 7, 4
	require.Equal(t, Sample{N: 3, Avg: 20, Median: 10, Wrong: 11}, Slower(a, b))
	require.Equal(t, Sample{N: 3, Avg: 20, Median: 10, Wrong: 11}, Slower(b, a))
	require.Equal(t, 7.5, summary(us(20, 10)).Median)
}

// Ranks that meet by messages play as well as those that spin, and an error of
// one is no reason for the other to go on once its context ends.
func TestRanksThatMeetByMessages(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		for _, k := range memory.Kinds() {
			for _, n := range []int{0, 5000} {
				g := game(t, k, n, nil)
				var samples [2]Sample
				var ranks sync.WaitGroup
				for i := range g.Ranks {
					r := &g.Ranks[i]
					r.Number, r.Meet = i, Messages{r.End}
					ranks.Go(func() {
						var err error
						for _, seed := range []uint64{0, Seeds(3, 20)} {
							if samples[i], err = r.Play(context.Background(), seed, 3, 20); err != nil {
								t.Errorf("%v", err)
								return
							}
						}
					})
				}
				ranks.Wait()
				for _, s := range samples {
					require.Equal(t, 20, s.N)
					require.Zero(t, s.Wrong)
					require.Positive(t, s.Median)
				}
			}
		}
	})
}
