package hcatest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"example.com/holdfast/hca"
	"github.com/stretchr/testify/require"
)

var queueParts = []part{
	{name: "ReceiverNotReady", run: testNotReady},
	{name: "NotReadyRaces", run: testNotReadyRaces},
	{name: "RetriesUsedUp", run: testRetriesUsedUp},
	{name: "NoRetries", run: testNoRetries},
	{name: "PeerClosesWhileWaiting", run: testPeerClosesWhileWaiting},
	{name: "Flush", run: testFlush},
	{name: "CloseUnderFire", run: testCloseUnderFire},
	{name: "SendQueueFull", run: testSendQueueFull},
	{name: "Overflow", run: testOverflow},
	{name: "Wait", run: testWait},
	{name: "CloseCQ", run: testCloseCQ},
}

// A send waits for its receive, with all that was posted behind it.
func testNotReady(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, hca.QPConfig{})
	for i := range 3 {
		require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: uint64(i), Op: hca.Send, SGE: SGE(r.ms, r.src[i:i+1])}))
	}
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 3, Op: hca.RDMAWrite, SGE: SGE(r.ms, r.src[3:4]), Remote: Remote(r.md, r.dst[3:])}))
	Quiet(t, r.x.SendCQ)
	require.Zero(t, r.dst[3], "the write does not overtake")
	for i := range 3 {
		require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: uint64(i), SGE: SGE(r.md, r.dst[i:i+1])}))
		Want(t, r.x.SendCQ, uint64(i), hca.WCSuccess)
		Want(t, r.y.RecvCQ, uint64(i), hca.WCSuccess)
	}
	Want(t, r.x.SendCQ, 3, hca.WCSuccess)
	require.Equal(t, r.src[:4], r.dst[:4])
	require.NotZero(t, a.Counters().RNRNaks)
}

// Sender and receiver in a tight race for who is first: no wake-up is lost.
func testNotReadyRaces(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, hca.QPConfig{})
	const rounds = 20000
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	take := func(cq hca.CQ) error {
		var wc [1]hca.WC
		for {
			n, err := cq.Poll(wc[:])
			switch {
			case err != nil:
				return err
			case n == 1 && wc[0].Status != hca.WCSuccess:
				return wc[0].Status
			case n == 1:
				return nil
			}
			if err := cq.Wait(ctx); err != nil {
				return err
			}
		}
	}
	each := func(f func(i int) error) chan error {
		done := make(chan error, 1)
		go func() {
			for i := range rounds {
				if err := f(i); err != nil {
					done <- fmt.Errorf("round %d: %w", i, err)
					return
				}
			}
			done <- nil
		}()
		return done
	}
	receiver := each(func(i int) error {
		if err := r.y.QP.PostRecv(hca.RecvWR{ID: uint64(i), SGE: SGE(r.md, r.dst[:8])}); err != nil {
			return err
		}
		return take(r.y.RecvCQ)
	})
	sender := each(func(i int) error {
		if err := r.x.QP.PostSend(hca.SendWR{ID: uint64(i), Op: hca.Send, SGE: SGE(r.ms, r.src[:8])}); err != nil {
			return err
		}
		return take(r.x.SendCQ)
	})
	require.NoError(t, <-sender)
	require.NoError(t, <-receiver)
}

func testRetriesUsedUp(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, hca.QPConfig{RNRRetry: 3, RNRTimer: 20 * time.Millisecond})
	start := time.Now()
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.Send, SGE: SGE(r.ms, r.src)}))
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.Send, SGE: SGE(r.ms, r.src)}))
	Want(t, r.x.SendCQ, 1, hca.WCRNRRetryExcErr)
	require.GreaterOrEqual(t, time.Since(start), 50*time.Millisecond)
	Want(t, r.x.SendCQ, 2, hca.WCWRFlushErr)
	wantError(t, r.x)

	// In time is in time, and the next wait has all its retries again.
	r = newRig(t, a, b, page, hca.QPConfig{RNRRetry: 7, RNRTimer: time.Second})
	for i := range 2 {
		require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: uint64(i), Op: hca.Send, SGE: SGE(r.ms, r.src)}))
		require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: uint64(i), SGE: SGE(r.md, r.dst)}))
		Want(t, r.x.SendCQ, uint64(i), hca.WCSuccess)
	}
}

func testNoRetries(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, hca.QPConfig{RNRRetry: -1})
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.Send, SGE: SGE(r.ms, r.src)}))
	Want(t, r.x.SendCQ, 1, hca.WCRNRRetryExcErr)
	wantError(t, r.x)
}

func testPeerClosesWhileWaiting(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, hca.QPConfig{})
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.Send, SGE: SGE(r.ms, r.src)}))
	require.NoError(t, r.y.QP.Close())
	Want(t, r.x.SendCQ, 1, hca.WCRetryExcErr)
}

// An error flushes everything behind it, in order, on both queues; also what
// is posted later, and what a Close finds.
func testFlush(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, hca.QPConfig{})
	for i := range 3 {
		require.NoError(t, r.x.QP.PostRecv(hca.RecvWR{ID: uint64(10 + i)}))
	}
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.Send, SGE: SGE(r.ms, r.src)})) // waits
	bad := SGE(r.ms, r.src)
	bad.Len++
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.RDMAWrite, SGE: bad, Unsignaled: true}))
	for i := range 3 {
		require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: uint64(3 + i), Op: hca.Send, SGE: SGE(r.ms, r.src), Unsignaled: true}))
	}
	require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: 5, SGE: SGE(r.md, r.dst)}))
	Want(t, r.x.SendCQ, 1, hca.WCSuccess)
	Want(t, r.x.SendCQ, 2, hca.WCLocProtErr)
	for i := range 3 {
		Want(t, r.x.SendCQ, uint64(3+i), hca.WCWRFlushErr)
		Want(t, r.x.RecvCQ, uint64(10+i), hca.WCWRFlushErr)
	}
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 20, Op: hca.Send, SGE: SGE(r.ms, r.src)}))
	Want(t, r.x.SendCQ, 20, hca.WCWRFlushErr)
	require.NotZero(t, a.Counters().Errors)

	r = newRig(t, a, b, page, hca.QPConfig{})
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.Send, SGE: SGE(r.ms, r.src)}))
	require.NoError(t, r.x.QP.PostRecv(hca.RecvWR{ID: 2}))
	require.NoError(t, r.x.QP.Close())
	Want(t, r.x.SendCQ, 1, hca.WCWRFlushErr)
	Want(t, r.x.RecvCQ, 2, hca.WCWRFlushErr)
}

func testSendQueueFull(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, hca.QPConfig{MaxSend: 3})
	for i := range 3 {
		require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: uint64(i), Op: hca.Send, SGE: SGE(r.ms, r.src)}))
	}
	require.ErrorIs(t, r.x.QP.PostSend(hca.SendWR{ID: 9, Op: hca.Send}), hca.ErrQueueFull)
	for i := range 3 {
		require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: uint64(i), SGE: SGE(r.md, r.dst)}))
		Want(t, r.x.SendCQ, uint64(i), hca.WCSuccess)
	}
	require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: 9, SGE: SGE(r.md, r.dst)}))
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 9, Op: hca.Send, SGE: SGE(r.ms, r.src)}))
	Want(t, r.x.SendCQ, 9, hca.WCSuccess)
}

// A queue that is too small loses completions and says so, once.
func testOverflow(t *testing.T, a, b hca.Device) {
	cq, err := a.NewCQ(2)
	require.NoError(t, err)
	r := &rig{src: Map(t, page), dst: Map(t, page)}
	r.x, r.y = NewEnd(t, a, hca.QPConfig{SendCQ: cq}), NewEnd(t, b, hca.QPConfig{})
	require.NoError(t, r.x.QP.Connect(r.y.QP.Addr()))
	require.NoError(t, r.y.QP.Connect(r.x.QP.Addr()))
	r.ms, r.md = Register(t, a, r.src, Everything), Register(t, b, r.dst, Everything)
	const n = 100 // more than any device rounds 2 up to
	for i := range n {
		require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: uint64(i), Op: hca.RDMAWrite, SGE: SGE(r.ms, r.src), Remote: Remote(r.md, r.dst)}))
	}
	var wc [1]hca.WC
	got, told := 0, false
	for range n {
		k, err := cq.Poll(wc[:])
		if err != nil {
			require.ErrorIs(t, err, hca.ErrNoMemory)
			told = true
			break
		}
		require.Equal(t, 1, k)
		require.EqualValues(t, got, wc[0].ID, "the oldest are kept")
		got++
	}
	require.True(t, told)
	require.GreaterOrEqual(t, got, 2)
	Quiet(t, cq)
	require.NoError(t, r.x.QP.Close())
	require.NoError(t, cq.Close())
}

func testWait(t *testing.T, a, b hca.Device) {
	r := newRig(t, a, b, page, hca.QPConfig{})
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	// Several goroutines wait; one completion wakes all of them.
	const waiters = 4
	var wg sync.WaitGroup
	errs := make(chan error, waiters)
	for range waiters {
		wg.Go(func() { errs <- r.y.RecvCQ.Wait(ctx) })
	}
	require.NoError(t, r.y.QP.PostRecv(hca.RecvWR{ID: 1, SGE: SGE(r.md, r.dst)}))
	require.NoError(t, r.x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.Send, SGE: SGE(r.ms, r.src)}))
	wg.Wait()
	for range waiters {
		require.NoError(t, <-errs)
	}
	require.NoError(t, r.y.RecvCQ.Wait(ctx), "it is still there")
	Want(t, r.y.RecvCQ, 1, hca.WCSuccess)

	ended, end := context.WithCancel(context.Background())
	end()
	require.ErrorIs(t, r.y.RecvCQ.Wait(ended), context.Canceled)
}

func testCloseCQ(t *testing.T, a, b hca.Device) {
	cq, err := a.NewCQ(4)
	require.NoError(t, err)
	e := NewEnd(t, a, hca.QPConfig{SendCQ: cq})
	require.ErrorIs(t, cq.Close(), hca.ErrBusy)
	require.NoError(t, e.QP.Close())
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	waiter := make(chan error, 1)
	go func() { waiter <- cq.Wait(ctx) }()
	require.NoError(t, cq.Close())
	require.ErrorIs(t, <-waiter, hca.ErrClosed)
	require.ErrorIs(t, cq.Close(), hca.ErrClosed)
	var wc [1]hca.WC
	_, err = cq.Poll(wc[:])
	require.ErrorIs(t, err, hca.ErrClosed)
	_, err = a.NewCQ(0)
	require.ErrorIs(t, err, hca.ErrInvalid)
	_, err = a.NewCQ(a.Attr().MaxCQE + 1)
	require.ErrorIs(t, err, hca.ErrInvalid)
}
