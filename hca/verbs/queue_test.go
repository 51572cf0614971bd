//go:build linux && cgo && verbs

package verbs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
)

// Requests without completion never clog the queue, though nobody polls, and
// none of the completions that make that so is seen by the caller.
func TestUnsignaledForEver(t *testing.T) {
	d := open(t)
	p := &pair{src: newBuffer(t, d, 8, everything), dst: newBuffer(t, d, 8, everything)}
	p.x, p.y = hcatest.Connect(t, d, d, hca.QPConfig{MaxSend: 16})
	deadline := time.Now().Add(30 * time.Second)
	const n = 2000
	for i := range uint64(n) {
		for {
			err := p.x.QP.PostSend(hca.SendWR{ID: i, Op: hca.RDMAWrite, SGE: p.src.sge(), Remote: p.dst.remote(), Unsignaled: i != n-1})
			if err == nil {
				break
			}
			require.ErrorIs(t, err, hca.ErrQueueFull)
			require.True(t, time.Now().Before(deadline), "request %d found no room", i)
		}
	}
	hcatest.Want(t, p.x.SendCQ, n-1, hca.WCSuccess)
	hcatest.Quiet(t, p.x.SendCQ)
	require.EqualValues(t, n, d.Counters().Writes)
}

// Queue pairs come and go at the same places of the table, each with
// completions of its own, and a Close completes what was left.
func TestQueuePairsComeAndGo(t *testing.T) {
	d := open(t)
	cq, err := d.NewCQ(64)
	require.NoError(t, err)
	b := newBuffer(t, d, page, everything)
	for i := range uint64(50) {
		qp, err := d.NewQP(hca.QPConfig{SendCQ: cq})
		require.NoError(t, err)
		require.NoError(t, qp.PostRecv(hca.RecvWR{ID: 2 * i, SGE: b.sge()}))
		require.NoError(t, qp.PostRecv(hca.RecvWR{ID: 2*i + 1, SGE: b.sge()}))
		require.ErrorIs(t, cq.Close(), hca.ErrBusy)
		require.NoError(t, qp.Close())
		for k := range uint64(2) {
			wc := hcatest.Want(t, cq, 2*i+k, hca.WCWRFlushErr)
			require.Equal(t, qp.Addr().QPN, wc.QPN)
			require.Equal(t, hca.WCRecv, wc.Op)
		}
		hcatest.Quiet(t, cq)
	}
	require.LessOrEqual(t, len(*d.table.Load()), 2, "places of the table are used again")
	require.NoError(t, cq.Close())
}

// What the adapter never completes, since it was destroyed first, is completed
// by Close: here, a request that it never got.
func TestCloseCompletesTheRest(t *testing.T) {
	d := open(t)
	cq, err := d.NewCQ(8)
	require.NoError(t, err)
	q, err := d.NewQP(hca.QPConfig{SendCQ: cq})
	require.NoError(t, err)
	qp := q.(*queuePair)
	qp.send.push(request{id: 5, op: hca.WCRDMARead, quiet: true})
	cq.(*completionQueue).posted.Add(1)
	require.NoError(t, q.Close())
	wc := hcatest.Want(t, cq, 5, hca.WCWRFlushErr)
	require.Equal(t, hca.WCRDMARead, wc.Op)
	require.Zero(t, cq.(*completionQueue).posted.Load())
	require.NoError(t, cq.Close())
}

// Everything at once on one queue pair, until it is closed under all of it:
// nobody hangs or touches what is gone, and what was posted completes.
func TestCloseUnderLoad(t *testing.T) {
	d := open(t)
	for range 10 {
		p := newPair(t, d, page)
		var wg sync.WaitGroup
		posted := make(chan int, 3)
		for range 3 {
			wg.Go(func() {
				n := 0
				for {
					err := p.x.QP.PostSend(hca.SendWR{Op: hca.RDMAWrite, SGE: p.src.sge(), Remote: p.dst.remote()})
					switch {
					case err == nil:
						n++
					case errors.Is(err, hca.ErrClosed):
						posted <- n
						return
					case !errors.Is(err, hca.ErrQueueFull):
						t.Error(err)
						posted <- n
						return
					}
				}
			})
		}
		ctx, cancel := context.WithCancel(context.Background())
		completed := make(chan int, 2)
		for range 2 {
			wg.Go(func() {
				n := 0
				var wc [5]hca.WC
				for {
					k, err := p.x.SendCQ.Poll(wc[:])
					if err != nil {
						t.Error(err)
					}
					n += k
					if k == 0 {
						if p.x.SendCQ.Wait(ctx) != nil {
							completed <- n
							return
						}
					}
				}
			})
		}
		hcatest.Next(t, p.x.SendCQ) // traffic flows
		require.NoError(t, p.x.QP.Close())
		sent := <-posted + <-posted + <-posted
		cancel()
		got := 1 + <-completed + <-completed
		var rest [512]hca.WC
		k, err := p.x.SendCQ.Poll(rest[:])
		require.NoError(t, err)
		require.Equal(t, sent, got+k, "every request completes once")
		wg.Wait()
	}
}

// Waiting holds no thread, ends with its context, and misses nothing: one
// completion at a time, each posted by who was woken by the last.
func TestWaitMissesNothing(t *testing.T) {
	d := open(t)
	p := newPair(t, d, 8)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	const rounds = 300
	errs := make(chan error, 1)
	go func() { // the far end answers every message
		errs <- func() error {
			var wc [1]hca.WC
			for range rounds {
				for n := 0; n == 0; {
					if err := p.y.RecvCQ.Wait(ctx); err != nil {
						return err
					}
					var err error
					if n, err = p.y.RecvCQ.Poll(wc[:]); err != nil {
						return err
					}
				}
				if err := p.y.QP.PostRecv(hca.RecvWR{SGE: p.dst.sge()}); err != nil {
					return err
				}
				if err := p.y.QP.PostSend(hca.SendWR{Op: hca.Send, SGE: p.dst.sge(), Unsignaled: true}); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	require.NoError(t, p.y.QP.PostRecv(hca.RecvWR{SGE: p.dst.sge()}))
	for range rounds {
		require.NoError(t, p.x.QP.PostRecv(hca.RecvWR{SGE: p.src.sge()}))
		require.NoError(t, p.x.QP.PostSend(hca.SendWR{Op: hca.Send, SGE: p.src.sge(), Unsignaled: true}))
		hcatest.Want(t, p.x.RecvCQ, 0, hca.WCSuccess)
	}
	require.NoError(t, <-errs)
}

// Sender and receiver race for who is first, so that messages meet no receive
// now and then: each is tried again, and no completion or wake-up is lost.
func TestNotReadyRaces(t *testing.T) {
	d := open(t)
	p := newPair(t, d, 8)
	rounds := uint64(scaled(10000))
	receiver := make(chan error, 1)
	go func() {
		receiver <- func() error {
			for i := range rounds {
				if err := p.y.QP.PostRecv(hca.RecvWR{ID: i, SGE: p.dst.sge()}); err != nil {
					return err
				}
				if wc, err := nextOf(p.y.RecvCQ, 30*time.Second); err != nil || wc.ID != i || wc.Status != hca.WCSuccess {
					return fmt.Errorf("receive %d: %d, %v, %w", i, wc.ID, wc.Status, err)
				}
			}
			return nil
		}()
	}()
	for i := range rounds {
		require.NoError(t, p.x.QP.PostSend(hca.SendWR{ID: i, Op: hca.Send, SGE: p.src.sge()}))
		hcatest.Want(t, p.x.SendCQ, i, hca.WCSuccess)
	}
	require.NoError(t, <-receiver)
	t.Logf("%d messages, %d met no receive", rounds, d.Counters().RNRNaks)
}

// Posting and polling allocate nothing.
func TestNoAllocation(t *testing.T) {
	d := open(t)
	p := newPair(t, d, 64)
	wr := hca.SendWR{ID: 1, Op: hca.RDMAWrite, SGE: p.src.sge(), Remote: p.dst.remote()}
	wc := make([]hca.WC, 4)
	require.Zero(t, testing.AllocsPerRun(200, func() {
		if err := p.x.QP.PostSend(wr); err != nil {
			t.Error(err)
		}
		for n := 0; n == 0; {
			var err error
			if n, err = p.x.SendCQ.Poll(wc); err != nil {
				t.Error(err)
			}
		}
	}))
}

// What a Poll costs: with nothing posted it makes no call into C, with
// something posted one, for up to 32 completions.
func BenchmarkPoll(b *testing.B) {
	b.Run("call", func(b *testing.B) { // a call into C that does nothing: runs without an adapter
		var q completionQueue
		for b.Loop() {
			q.emptyCall()
		}
	})
	run := func(name string, posted bool) {
		b.Run(name, func(b *testing.B) {
			d := open(b)
			x, _ := hcatest.Connect(b, d, d, hca.QPConfig{})
			if posted {
				require.NoError(b, x.QP.PostRecv(hca.RecvWR{}))
			}
			wc := make([]hca.WC, 32)
			for b.Loop() {
				if n, err := x.RecvCQ.Poll(wc); n != 0 || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
	run("idle", false)
	run("empty", true)
}

// What a completion costs to fetch, by how many one call into C fetches. Only
// calls that find all they ask for count; the figure is their median, divided
// by the number.
func BenchmarkPollBatch(b *testing.B) {
	for _, n := range []int{1, 4, batch} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			d := open(b)
			x, _ := hcatest.Connect(b, d, d, hca.QPConfig{})
			q := x.SendCQ.(*completionQueue)
			src, dst := newBuffer(b, d, 8, everything), newBuffer(b, d, 8, everything)
			var full []time.Duration
			var wc [batch]hca.WC
			for b.Loop() {
				for range batch {
					if err := x.QP.PostSend(hca.SendWR{Op: hca.RDMAWrite, SGE: src.sge(), Remote: dst.remote()}); err != nil {
						b.Fatal(err)
					}
				}
				time.Sleep(time.Millisecond) // nothing tells that all are ready but to fetch them
				q.mu.Lock()
				for left := batch; left > 0; {
					start := time.Now()
					err := q.fetch(n)
					took := time.Since(start)
					if err != nil {
						b.Fatal(err)
					}
					got := q.take(wc[:])
					if got == n {
						full = append(full, took)
					}
					left -= got
				}
				q.mu.Unlock()
			}
			if len(full) > 0 {
				slices.Sort(full)
				b.ReportMetric(float64(full[len(full)/2].Nanoseconds())/float64(n), "ns/completion")
			}
			b.ReportMetric(float64(len(full)), "calls")
		})
	}
}

// BenchmarkRegister is what the cache saves: to register and deregister.
func BenchmarkRegister(b *testing.B) {
	d := open(b)
	for _, n := range []int{1, 16, 256} {
		mem := hcatest.Map(b, n*page)
		for i := range mem {
			mem[i] = 1
		}
		for _, k := range []struct {
			name   string
			access hca.Access
		}{{"pinned", everything}, {"on demand", everything | hca.OnDemand}} {
			b.Run(k.name+"/"+hca.Bytes(len(mem)).String(), func(b *testing.B) {
				if k.access&hca.OnDemand != 0 && !d.attr.ODP.Support {
					b.Skip("no on-demand paging")
				}
				for b.Loop() {
					mr, err := d.Register(hca.RangeOf(mem), k.access)
					if err != nil {
						b.Fatal(err)
					}
					if err := d.Deregister(mr); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
