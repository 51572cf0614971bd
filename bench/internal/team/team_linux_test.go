package team

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/bench/internal/exchange"
	"example.com/holdfast/bench/internal/memory"
	"example.com/holdfast/bench/internal/pingpong"
	"example.com/holdfast/bench/internal/rig"
	"example.com/holdfast/hca"
	"example.com/holdfast/hcasim"
	"example.com/holdfast/intercept"
	"example.com/holdfast/internal/childtest"
)

const limit = time.Minute

// two is both ranks in this process, with an exchange between them as two
// processes have it. They are on live devices, which connect two ranks of one
// process; all else is what two processes do.
type two struct {
	*driver
	rank1  *exchange.Client
	served chan error // what rank 1 came to
}

// setup is what a test changes.
type setup struct {
	device [2]func(hca.Device) hca.Device // may put something around a device
	rank1  func(exchange.Exchange) exchange.Exchange
	open   error // of rank 1's device
}

func newTwo(t *testing.T, s setup) (*two, error) {
	t.Helper()
	f, err := hcasim.NewFabric(hcasim.FabricConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	open := func(rank int) (*rig.Rig, error) {
		dev, err := hcasim.Open(hcasim.Live{Fabric: f, Name: fmt.Sprintf("live%d", rank)})
		if err != nil {
			return nil, err
		}
		mon, err := intercept.Explicit()
		if err != nil {
			return nil, errors.Join(err, dev.Close())
		}
		g := &rig.Rig{Devices: []hca.Device{dev}, Monitor: mon, Mapper: memory.Owned{Monitor: mon}}
		if change := s.device[rank]; change != nil {
			g.Devices[0] = change(dev)
		}
		return g, nil
	}
	hub, err := exchange.Listen(2)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, hub.Close()) })
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)

	w := &two{served: make(chan error, 1)}
	w.rank1, err = exchange.Join(ctx, hub.Ticket(1))
	require.NoError(t, err)
	t.Cleanup(w.rank1.Close)
	var x exchange.Exchange = w.rank1
	if s.rank1 != nil {
		x = s.rank1(x)
	}
	go func() {
		w.served <- Serve(x, func() (*rig.Rig, error) {
			if s.open != nil {
				return nil, s.open
			}
			return open(1)
		})
	}()
	g, err := open(0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close(), "nothing is left on rank 0's device") })
	rank0, err := exchange.Join(ctx, hub.Ticket(0))
	require.NoError(t, err)
	t.Cleanup(rank0.Close)
	w.driver, err = meet(ctx, rank0, g)
	return w, err
}

// leave ends rank 1 in order: nothing is left on its device.
func (w *two) leave(t *testing.T) {
	t.Helper()
	require.NoError(t, w.driver.leave())
	require.NoError(t, <-w.served)
}

// playSome plays a little with every kind of buffers under a new pair.
func playSome(t *testing.T, w *two, backend string) {
	t.Helper()
	p, err := w.pair(backend)
	require.NoError(t, err)
	require.Contains(t, p.Name(), "on live0")
	for _, kind := range memory.Kinds() {
		for _, n := range []int{0, 5000, 1 << 17} {
			require.NoError(t, p.Prepare(context.Background(), kind, n))
			for range 2 {
				s, err := p.Play(context.Background(), 2, 10)
				require.NoError(t, err, "%s, %v buffers of %d bytes", backend, kind, n)
				require.Equal(t, 10, s.N)
				require.Zero(t, s.Wrong)
				require.Positive(t, s.Median)
			}
		}
	}
	require.NoError(t, p.Close())
}

func TestTwoRanksPlay(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		w, err := newTwo(t, setup{})
		require.NoError(t, err)
		require.Equal(t, [][2]string{{"Ranks", "each in a process of its own"}}, w.notes[:1])
		require.Contains(t, w.notes[1][1], "live0: ")
		require.Equal(t, "Devices, rank 1", w.notes[3][0], "another name than rank 0's")
		require.Len(t, w.notes, 4, "the same source of events is not named twice")
		for _, backend := range rig.DefaultBackends() {
			playSome(t, w, backend)
		}
		w.leave(t)
	})
}

// rationed is a device that registers a number of times and then has no memory
// to pin, until it is given more.
type rationed struct {
	hca.Device
	left *atomic.Int64
}

func (r rationed) Register(mem hca.Range, a hca.Access) (*hca.MR, error) {
	if r.left.Add(-1) < 0 {
		return nil, &hca.OpError{Op: "register", Device: "live", Err: hca.ErrNoMemory}
	}
	return r.Device.Register(mem, a)
}

// A rank that cannot pin ends the game of both at once, wherever in it that
// is; what it was is known, and the next pair works.
func TestARankThatCannotPin(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		for rank := range 2 {
			var left atomic.Int64
			var s setup
			s.device[rank] = func(d hca.Device) hca.Device { return rationed{d, &left} }
			w, err := newTwo(t, s)
			require.NoError(t, err)
			for _, good := range []int64{0, 1, 2, 7, 8} { // the first is the endpoint's own
				left.Store(good)
				p, err := w.pair("direct")
				if good > 0 {
					require.NoError(t, err)
					require.NoError(t, p.Prepare(context.Background(), memory.Same, 5000))
					_, err = p.Play(context.Background(), 0, 1<<20)
					left.Store(1 << 30)
					require.NoError(t, p.Close())
				}
				require.ErrorIs(t, err, hca.ErrNoMemory, "rank %d, registrations: %d", rank, good)
				require.Equal(t, rank == 1, strings.Contains(err.Error(), "in rank 1's process"), "%v", err)
				require.Equal(t, 1, strings.Count(err.Error(), "register"), "no echo: %v", err)
				left.Store(1 << 30)
			}
			playSome(t, w, "direct")
			w.leave(t)
		}
	})
}

// answering is an exchange that changes what rank 1 answers.
type answering struct {
	exchange.Exchange
	change func(ctx context.Context, key string, a *answer) error
}

func (x answering) Put(ctx context.Context, key string, value []byte) error {
	var a answer
	if err := json.Unmarshal(value, &a); err != nil {
		return err
	}
	if err := x.change(ctx, key, &a); err != nil {
		return err
	}
	value, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return x.Exchange.Put(ctx, key, value)
}

// The figures of rank 1 count: wrong bytes, and times if they are the longer.
func TestRank1Counts(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		w, err := newTwo(t, setup{rank1: func(x exchange.Exchange) exchange.Exchange {
			return answering{x, func(_ context.Context, _ string, a *answer) error {
				if a.Sample.N > 0 {
					a.Sample = pingpong.Sample{N: a.Sample.N, Avg: 1e9, Median: 1e8, Wrong: 3}
				}
				return nil
			}}
		}})
		require.NoError(t, err)
		p, err := w.pair("direct")
		require.NoError(t, err)
		require.NoError(t, p.Prepare(context.Background(), memory.Same, 64))
		s, err := p.Play(context.Background(), 0, 5)
		require.NoError(t, err)
		require.Equal(t, pingpong.Sample{N: 5, Avg: 1e9, Median: 1e8, Wrong: 3}, s)
		require.NoError(t, p.Close())
		w.leave(t)
	})
}

// endless plays until something ends it; when it has begun, do is called.
func endless(t *testing.T, w *two, ctx context.Context, do func()) error {
	t.Helper()
	p, err := w.pair("direct")
	require.NoError(t, err)
	require.NoError(t, p.Prepare(ctx, memory.Same, 64))
	before := w.rig.Devices[0].Counters().Writes
	go func() {
		for w.rig.Devices[0].Counters().Writes < before+10 {
			time.Sleep(time.Millisecond)
		}
		do()
	}()
	_, err = p.Play(ctx, 0, 1<<24)
	require.Error(t, err)
	return errors.Join(err, p.Close())
}

// Rank 1 goes away in the middle of a game: rank 0 hears it at once, says it
// once, and does not wait for it any more.
func TestRank1IsLost(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		w, err := newTwo(t, setup{})
		require.NoError(t, err)
		err = endless(t, w, context.Background(), w.rank1.Close)
		var lost *exchange.LostError
		require.ErrorAs(t, err, &lost)
		require.Equal(t, 1, strings.Count(err.Error(), "rank 1 is gone"), "%v", err)
		require.ErrorIs(t, <-w.served, exchange.ErrGone)
		require.NoError(t, w.driver.leave(), "there is nobody to tell")
	})
}

// Rank 0 is gone in the middle of a game: rank 1 ends.
func TestRank0IsLost(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		w, err := newTwo(t, setup{})
		require.NoError(t, err)
		err = endless(t, w, context.Background(), w.x.(*exchange.Client).Close)
		require.ErrorIs(t, err, exchange.ErrGone)
		var lost *exchange.LostError
		require.ErrorAs(t, <-w.served, &lost)
		require.Equal(t, 0, lost.Rank)
	})
}

// What ends rank 0's context ends rank 1's part too, and the next pair works.
func TestTheContextEndsBoth(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		w, err := newTwo(t, setup{})
		require.NoError(t, err)
		enough := errors.New("enough")
		ctx, cancel := context.WithCancelCause(context.Background())
		err = endless(t, w, ctx, func() { cancel(enough) })
		require.ErrorIs(t, err, enough)
		playSome(t, w, "direct")
		w.leave(t)
	})
}

// A rank 1 that lives and does not answer is named, with what it owes.
func TestRank1IsSilent(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		over := make(chan struct{})
		w, err := newTwo(t, setup{rank1: func(x exchange.Exchange) exchange.Exchange {
			return answering{x, func(_ context.Context, _ string, a *answer) error {
				if a.Sample.N > 0 {
					<-over
				}
				return nil
			}}
		}})
		require.NoError(t, err)
		w.parting = 20 * time.Millisecond
		p, err := w.pair("direct")
		require.NoError(t, err)
		require.NoError(t, p.Prepare(context.Background(), memory.Same, 64))
		_, err = p.Play(context.Background(), 0, 5)
		require.ErrorContains(t, err, `"did/2" of rank 1: not within 20ms after rank 0 was done`)
		w.rank1.Close()
		require.ErrorContains(t, p.Close(), "rank 1 is gone")
		close(over)
		require.ErrorIs(t, <-w.served, exchange.ErrGone)
	})
}

// A device that rank 1 cannot open is rank 0's error.
func TestRank1CannotOpen(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		w, err := newTwo(t, setup{open: &hca.OpError{Op: "open", Device: "mlx5_0", Err: hca.ErrNotSupported}})
		require.ErrorIs(t, err, hca.ErrNotSupported)
		require.ErrorContains(t, err, "in rank 1's process: ")
		require.ErrorContains(t, err, "mlx5_0")
		require.NoError(t, <-w.served, "it has been told")
	})
}

// Orders that make no sense are answered, not obeyed.
func TestStrangeOrders(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		w, err := newTwo(t, setup{})
		require.NoError(t, err)
		for _, o := range []order{{Do: "dance"}, {Do: doPlay, N: 1}, {Do: doPrepare, Bytes: 1}, {Do: doOpen, Backend: "magic"}} {
			_, err := w.do(context.Background(), o, nil)
			require.ErrorContains(t, err, "in rank 1's process: ", "%+v", o)
		}
		p, err := w.pair("direct")
		require.NoError(t, err)
		_, err = p.Play(context.Background(), 0, 1)
		require.ErrorContains(t, err, errNoBuffers.Error()) // of whichever rank says so first
		require.NoError(t, p.Close())
		playSome(t, w, "pin")
		w.leave(t)
	})
}

// A team of threads is the same to who uses it.
func TestThreads(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		g, err := rig.Open(rig.Config{Device: "live"})
		require.NoError(t, err)
		var team Team = Threads{Rig: g}
		require.Equal(t, g.Lines(), team.Notes())
		require.NoError(t, team.Lacks("odp"))
		p, err := team.Pair("pin")
		require.NoError(t, err)
		for _, kind := range memory.Kinds() {
			require.NoError(t, p.Prepare(context.Background(), kind, 5000))
			s, err := p.Play(context.Background(), 1, 10)
			require.NoError(t, err)
			require.Equal(t, 10, s.N)
			require.Zero(t, s.Wrong)
		}
		require.NoError(t, p.Close())
		require.NoError(t, team.Close())
	})
}
