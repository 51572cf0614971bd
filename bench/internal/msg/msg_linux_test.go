package msg_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/bench/internal/msg"
	"example.com/holdfast/bench/internal/pattern"
	"example.com/holdfast/hca"
	"example.com/holdfast/hcasim"
	"example.com/holdfast/internal/childtest"
	"example.com/holdfast/odpbackend"
	"example.com/holdfast/pinbackend"
	"example.com/holdfast/regcache"
)

const limit = 60 * time.Second

// pair is two joined endpoints on two live devices.
func pair(t *testing.T, registrar func(*testing.T, hca.Device) msg.Registrar) [2]*msg.Endpoint {
	t.Helper()
	f, err := hcasim.NewFabric(hcasim.FabricConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	var ends [2]*msg.Endpoint
	for i := range ends {
		dev, err := hcasim.Open(hcasim.Live{Fabric: f})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, dev.Close()) })
		ends[i], err = msg.NewEndpoint(dev, registrar(t, dev))
		require.NoError(t, err)
	}
	// First registered, last run: before the devices close.
	t.Cleanup(func() { require.NoError(t, errors.Join(ends[0].Close(), ends[1].Close())) })
	require.NoError(t, msg.Join(ends[0], ends[1]))
	return ends
}

func direct(_ *testing.T, d hca.Device) msg.Registrar { return msg.Direct{Backend: pinbackend.New(d)} }

func registrars() map[string]func(*testing.T, hca.Device) msg.Registrar {
	cached := func(t *testing.T, b regcache.Backend) msg.Registrar {
		c, err := regcache.New(b, regcache.Config{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		return msg.Cached{Cache: c}
	}
	return map[string]func(*testing.T, hca.Device) msg.Registrar{
		"direct": direct,
		"pin":    func(t *testing.T, d hca.Device) msg.Registrar { return cached(t, pinbackend.New(d)) },
		"odp": func(t *testing.T, d hca.Device) msg.Registrar {
			b, err := odpbackend.New(d, odpbackend.Config{})
			require.NoError(t, err)
			return cached(t, b)
		},
	}
}

// Messages of every size arrive to the byte, in order, both ways, whichever
// side comes first.
func TestSendRecv(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		for name, registrar := range registrars() {
			t.Run(name, func(t *testing.T) {
				ends := pair(t, registrar)
				ctx, cancel := context.WithTimeout(context.Background(), limit/2)
				defer cancel()
				sizes := []int{0, 1, 7, 64, 4096, 5000, 65536, 1<<20 + 3}
				play := func(from, to *msg.Endpoint) {
					var wg sync.WaitGroup
					wg.Go(func() {
						for i, n := range sizes {
							b := make([]byte, n)
							pattern.Fill(b, uint64(i))
							if err := from.Send(ctx, b); err != nil {
								t.Errorf("send %d: %v", n, err)
								cancel()
							}
						}
					})
					wg.Go(func() {
						for i, n := range sizes {
							b := make([]byte, n+16) // room for more than comes
							got, err := to.Recv(ctx, b)
							if err != nil || got != n {
								t.Errorf("received %d bytes of %d: %v", got, n, err)
								cancel()
								return
							}
							if wrong := pattern.Wrong(b[:n], uint64(i)); wrong != 0 {
								t.Errorf("%d of %d bytes are wrong", wrong, n)
							}
							for _, x := range b[n:] {
								if x != 0 {
									t.Errorf("bytes after the end of %d were written", n)
									break
								}
							}
						}
					})
					wg.Wait()
				}
				play(ends[0], ends[1])
				play(ends[1], ends[0])
			})
		}
	})
}

func TestTheReceiversBufferIsTooShort(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		ends := pair(t, direct)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		received := make(chan error, 1)
		go func() {
			_, err := ends[1].Recv(ctx, make([]byte, 10))
			received <- err
		}()
		err := ends[0].Send(ctx, make([]byte, 11))
		require.ErrorIs(t, err, hca.ErrTooLong)
		require.ErrorContains(t, err, "at most 10 bytes")
		cancel()
		require.ErrorIs(t, <-received, context.Canceled, "a wait ends with its context")
	})
}

func TestWaitsEndWithTheContext(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		ends := pair(t, direct)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, ends[0].Send(ctx, make([]byte, 8)), context.DeadlineExceeded)
	})
}

func TestALostMessageIsNoticed(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		ends := pair(t, direct)
		ctx, cancel := context.WithTimeout(context.Background(), limit/2)
		defer cancel()
		ends[0].SkipOne()
		sent := make(chan error, 1)
		go func() { sent <- ends[0].Send(ctx, make([]byte, 8)) }()
		_, err := ends[1].Recv(ctx, make([]byte, 8))
		require.ErrorContains(t, err, "message 2 arrived where 1 was expected")
		require.NoError(t, <-sent)
	})
}

// refusing registers nothing.
type refusing struct{ err error }

func (r refusing) Acquire([]byte, hca.Access) (msg.Registration, error) {
	return msg.Registration{}, r.err
}
func (r refusing) Release(msg.Registration) error { return nil }

func TestErrorsOfTheRegistrar(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		want := fmt.Errorf("test: %w", hca.ErrNoMemory)
		ends := pair(t, func(*testing.T, hca.Device) msg.Registrar { return refusing{want} })
		require.Equal(t, want, ends[0].Send(context.Background(), make([]byte, 8)))
		_, err := ends[0].Recv(context.Background(), make([]byte, 8))
		require.Equal(t, want, err)
	})
}

// lying answers with keys that the device does not know.
type lying struct{}

func (lying) Acquire([]byte, hca.Access) (msg.Registration, error) {
	return msg.Registration{LKey: 0xdead, RKey: 0xdead}, nil
}
func (lying) Release(msg.Registration) error { return nil }

func TestTheDevicesStatusIsTold(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		ends := pair(t, func(*testing.T, hca.Device) msg.Registrar { return lying{} })
		ctx, cancel := context.WithCancel(context.Background())
		received := make(chan struct{})
		go func() {
			defer close(received)
			_, _ = ends[1].Recv(ctx, make([]byte, 8)) // what it meets is not looked at here
		}()
		err := ends[0].Send(ctx, make([]byte, 8))
		require.ErrorIs(t, err, hca.WCLocProtErr)
		cancel()
		<-received
	})
}

// Nobody leaves a barrier before the other has come, again and again, with
// messages in between.
func TestBarrier(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		ends := pair(t, direct)
		ctx, cancel := context.WithTimeout(context.Background(), limit/2)
		defer cancel()
		const rounds = 1000
		var come [2]atomic.Int64
		run := func(i int) error {
			buf := make([]byte, 8)
			for round := int64(1); round <= rounds; round++ {
				come[i].Store(round)
				if err := ends[i].Barrier(ctx); err != nil {
					return fmt.Errorf("round %d: %w", round, err)
				}
				if other := come[1-i].Load(); other < round {
					return fmt.Errorf("left barrier %d when the other had come to %d", round, other)
				}
				if round%3 != 0 {
					continue
				}
				var err error
				if i == 0 {
					err = ends[i].Send(ctx, buf)
				} else {
					_, err = ends[i].Recv(ctx, buf)
				}
				if err != nil {
					return fmt.Errorf("round %d: %w", round, err)
				}
			}
			return nil
		}
		var both sync.WaitGroup
		for i := range ends {
			both.Go(func() {
				if err := run(i); err != nil {
					t.Errorf("end %d: %v", i, err)
					cancel()
				}
			})
		}
		both.Wait()
	})
}

// A barrier waits for the other, as long as the context allows.
func TestABarrierAlone(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		ends := pair(t, direct)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, ends[0].Barrier(ctx), context.DeadlineExceeded)
	})
}

func TestALostBarrierIsNoticed(t *testing.T) {
	childtest.Run(t, limit, nil, func(t *testing.T) {
		ends := pair(t, direct)
		ctx, cancel := context.WithCancel(context.Background())
		ends[0].SkipBarrier()
		first := make(chan error, 1)
		go func() { first <- ends[0].Barrier(ctx) }()
		require.ErrorContains(t, ends[1].Barrier(ctx), "the peer came to barrier 2 where 1 was expected")
		cancel()
		require.ErrorIs(t, <-first, context.Canceled)
	})
}
