//go:build linux && cgo && verbs

package verbs

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
)

// Prefetch while the same pages are thrown away all the time: it succeeds, or
// says that it may be tried again, and what is transferred afterwards is
// right.
func TestPrefetchAgainstMadvise(t *testing.T) {
	d := open(t)
	needODP(t, d, hca.ODPWrite)
	needPrefetch(t, d)
	const n, drops = 16 * page, 3000
	b := newBuffer(t, d, n, everything|hca.OnDemand)
	cq, err := d.NewCQ(1)
	require.NoError(t, err)
	dropped := make(chan error, 1)
	go func() {
		for range drops {
			if err := unix.Madvise(b.mem, unix.MADV_DONTNEED); err != nil {
				dropped <- err
				return
			}
		}
		dropped <- nil
	}()
	good, again := 0, 0
	check := func(err error) {
		if errors.Is(err, hca.ErrAgain) {
			again++
			return
		}
		good++
		require.NoError(t, err)
	}
	for i, going := 0, true; going; i++ {
		check(d.Advise(hca.Advice(i%3), []hca.SGE{b.sge()}))
		require.NoError(t, d.PostAdvise(cq, uint64(i), hca.Advice(i%3), []hca.SGE{b.sge()}))
		wc := hcatest.Next(t, cq)
		require.EqualValues(t, i, wc.ID)
		check(wc.Err)
		select {
		case err := <-dropped:
			require.NoError(t, err)
			going = false
		default:
		}
	}
	require.NotZero(t, good)
	t.Logf("%d advices done and %d to be tried again, against %d madvise", good, again, drops)

	p := newPair(t, d, n)
	require.NoError(t, p.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMAWrite, SGE: p.src.sge(), Remote: b.remote()}))
	hcatest.Want(t, p.x.SendCQ, 1, hca.WCSuccess)
	same(t, p.src.mem, b.mem, "after all that")
}

// A registration goes while prefetches of it are queued and running: each
// completes, and none after the wait.
func TestDeregisterWhilePrefetching(t *testing.T) {
	d := open(t)
	needODP(t, d, hca.ODPWrite)
	needPrefetch(t, d)
	const n, posts = 2 << 20, 8
	mem := hcatest.Map(t, n)
	cq, err := d.NewCQ(posts)
	require.NoError(t, err)
	done, refused := 0, 0
	for round := 0; round < 10 || refused == 0 && round < 1000; round++ {
		require.NoError(t, unix.Madvise(mem, unix.MADV_DONTNEED))
		mr, err := d.Register(hca.RangeOf(mem), everything|hca.OnDemand)
		require.NoError(t, err)
		for i := range posts {
			require.NoError(t, d.PostAdvise(cq, uint64(i), hca.PrefetchWrite, []hca.SGE{hcatest.SGE(mr, mem)}))
		}
		hcatest.Next(t, cq) // the rest is running and queued now
		require.NoError(t, d.Deregister(mr))
		for range posts - 1 {
			if wc := hcatest.Next(t, cq); wc.Err != nil {
				require.ErrorIs(t, wc.Err, hca.ErrInvalid, "the key is gone")
				refused++
			} else {
				done++
			}
		}
	}
	require.NotZero(t, refused, "the key never went first")
	require.NotZero(t, done)
	t.Logf("%d done before the key went, %d after it", done, refused)
	works(t, d)
}

// The adapter first reads a page that nobody ever touched, and then writes it.
// The first access may map the one page of zeros that all processes share; the
// second must not write into that.
func TestReadThenWrite(t *testing.T) {
	d := open(t)
	needODP(t, d, hca.ODPRead|hca.ODPWrite)
	for _, advise := range []bool{false, true} {
		b := newBuffer(t, d, page, everything|hca.OnDemand)
		other := hcatest.Map(t, page) // reads as the shared zeros until written
		p := newPair(t, d, page)
		if advise {
			needPrefetch(t, d)
			require.NoError(t, d.Advise(hca.Prefetch, []hca.SGE{b.sge()}))
		}
		require.NoError(t, p.x.QP.PostSend(hca.SendWR{ID: 1, Op: hca.RDMARead, SGE: p.src.sge(), Remote: b.remote()}))
		hcatest.Want(t, p.x.SendCQ, 1, hca.WCSuccess)
		same(t, make([]byte, page), p.src.mem, "untouched memory reads as zeros")
		p.src.fill(9)
		require.NoError(t, p.x.QP.PostSend(hca.SendWR{ID: 2, Op: hca.RDMAWrite, SGE: p.src.sge(), Remote: b.remote()}))
		hcatest.Want(t, p.x.SendCQ, 2, hca.WCSuccess)
		same(t, make([]byte, page), other, "the page of zeros was written")
		same(t, p.src.mem, b.mem, "the write arrived, prefetched for reading: %v", advise)
	}
}
