package hcatest

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"example.com/holdfast/hca"
	"github.com/stretchr/testify/require"
)

// Whatever a queue pair took completes exactly once, however its end comes:
// here both close while several goroutines post at both ends.
func testCloseUnderFire(t *testing.T, a, b hca.Device) {
	start := time.Now()
	for round := range 20 {
		const depth = 64
		r := &rig{src: Map(t, page), dst: Map(t, page)}
		r.x, r.y = NewEnd(t, a, hca.QPConfig{MaxSend: depth, MaxRecv: depth}), NewEnd(t, b, hca.QPConfig{MaxSend: depth, MaxRecv: depth})
		require.NoError(t, r.x.QP.Connect(r.y.QP.Addr()))
		require.NoError(t, r.y.QP.Connect(r.x.QP.Addr()))
		r.ms, r.md = Register(t, a, r.src, Everything), Register(t, b, r.dst, Everything)
		var mu sync.Mutex
		taken := map[string]int{} // what the queue pairs accepted
		var posters sync.WaitGroup
		post := func(key string, f func(id uint64) error) {
			posters.Go(func() {
				for id := uint64(0); id < depth; {
					switch err := f(id); {
					case err == nil:
						mu.Lock()
						taken[fmt.Sprint(key, id)]++
						mu.Unlock()
						id++
					case errors.Is(err, hca.ErrQueueFull):
						id = depth
					default:
						if !errors.Is(err, hca.ErrClosed) {
							t.Errorf("%s: %v", key, err)
						}
						id = depth
					}
				}
			})
		}
		post("send", func(id uint64) error {
			return r.x.QP.PostSend(hca.SendWR{ID: id, Op: hca.Send, SGE: SGE(r.ms, r.src[:8])})
		})
		post("send1", func(id uint64) error {
			return r.x.QP.PostSend(hca.SendWR{ID: 1000 + id, Op: hca.RDMAWrite, SGE: SGE(r.ms, r.src[:8]), Remote: Remote(r.md, r.dst)})
		})
		post("recv", func(id uint64) error {
			return r.y.QP.PostRecv(hca.RecvWR{ID: id, SGE: SGE(r.md, r.dst)})
		})
		// The later the round, the more is under way when the end comes.
		for enough := false; !enough; runtime.Gosched() {
			require.Less(t, time.Since(start), limit)
			mu.Lock()
			enough = len(taken) >= 3*round
			mu.Unlock()
		}
		first, second := r.y, r.x
		if round%2 == 1 {
			first, second = r.x, r.y
		}
		require.NoError(t, first.QP.Close())
		require.NoError(t, second.QP.Close())
		posters.Wait()

		got := map[string]int{}
		var wc [4 * depth]hca.WC
		n, err := r.x.SendCQ.Poll(wc[:])
		require.NoError(t, err)
		for _, c := range wc[:n] {
			if c.ID >= 1000 {
				got[fmt.Sprint("send1", c.ID-1000)]++
			} else {
				got[fmt.Sprint("send", c.ID)]++
			}
		}
		n, err = r.y.RecvCQ.Poll(wc[:])
		require.NoError(t, err)
		for _, c := range wc[:n] {
			got[fmt.Sprint("recv", c.ID)]++
		}
		require.Equal(t, taken, got)
	}
}
