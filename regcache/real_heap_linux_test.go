package regcache_test

import (
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/regcache"
)

// C4: buffers on the Go heap are used and dropped, what is free is given back to
// the kernel, and buffers are allocated until they lie there again, while others
// allocate all the time. The adapter sees the right bytes.
//
// Handed over with GetBytes, a buffer is kept alive as long as its registration
// is; handed over as a mere range it is memory like any other, of which the
// kernel tells when the runtime gives its pages back.
func TestC4_GoHeap(t *testing.T) {
	for _, held := range []bool{true, false} {
		for _, procs := range []string{"", "GOMAXPROCS=1"} {
			name, env := "range", []string(nil)
			ws := []world{foreign, ownedBoth, unseen, odpWhole}
			if held {
				name, ws = "held", []world{foreign, alone, owned, odpRange}
			}
			if procs != "" {
				name, env = name+"_one_core", []string{procs}
			}
			t.Run(name, func(t *testing.T) {
				inWorlds(t, 2*time.Minute, env, ws, regcache.Config{MaxRegions: 40}, func(t *testing.T, k *kit) {
					n := rounds(600)
					if k.name == foreign.name {
						n = underRace(rounds(10_000), 2)
					}
					goHeap(t, k, held, n)
				})
				if !held { // with room enough to remember what is gone
					inWorlds(t, time.Minute, env, []world{trusting}, regcache.Config{}, func(t *testing.T, k *kit) { goHeap(t, k, held, 1000) })
				}
			})
		}
	}
}

// stress allocates until it is told to stop: small objects, stacks and large
// ones, all of them soon garbage.
func stress(over *atomic.Bool) {
	var kept [64][]byte
	for i := 0; !over.Load(); i++ {
		kept[i%len(kept)] = make([]byte, 1<<(i%17))
		if i%64 == 0 {
			done := make(chan struct{})
			go func() { deep(20); close(done) }()
			<-done
		}
		runtime.Gosched()
	}
}

func deep(n int) byte {
	var frame [1024]byte
	if n > 0 {
		frame[n] = deep(n - 1)
	}
	return frame[n]
}

func goHeap(t *testing.T, k *kit, held bool, n int) {
	const most = 65<<10 + 1
	l := k.newLink(t, most)
	rnd := rand.New(rand.NewPCG(1, uint64(n)))
	sizes := []int{1, 100, 4096, 8192, 33 << 10, 33 << 10, 64 << 10, most}
	var over atomic.Bool
	stopped := make(chan struct{})
	go func() { stress(&over); close(stopped) }()

	seen := map[uintptr]int{}
	again := 0
	const batch = 16
	for done := 0; done < n; done += batch {
		bufs := make([][]byte, batch)
		for i := range bufs {
			b := make([]byte, sizes[rnd.IntN(len(sizes))])
			if cut := rnd.IntN(4); cut == 0 && len(b) > 100 { // a part, with a crooked beginning
				b = b[rnd.IntN(len(b)/2):]
			}
			bufs[i] = b
			at := uintptr(unsafe.Pointer(unsafe.SliceData(b))) &^ 8191
			if seen[at]++; seen[at] > 1 {
				again++
			}
			for range 2 {
				l.write(b)
				var r *regcache.Region
				var err error
				if held {
					r, err = k.cache.GetBytes(b, allWays)
				} else {
					r, err = k.cache.Get(hca.RangeOf(b), allWays)
				}
				require.NoError(t, err)
				if held && k.backend == nil && r.UsedOnce() == hca.KeptAllRight {
					require.Equal(t, hca.MemHeld, r.Kind())
				}
				require.NoError(t, l.check(r, b))
				r.Release()
			}
			runtime.KeepAlive(b)
		}
		bufs = nil
		if done/batch%8 == 0 {
			debug.FreeOSMemory()
		}
	}
	over.Store(true)
	<-stopped
	t.Logf("%d of %d buffers lay where one had lain before", again, n)
	require.Greater(t, again, n/10, "hardly an address came again: the test proves nothing")
	k.verdictOf(t, l)
	if held {
		k.world.keeps = true // of held memory every world keeps
		k.wantHits(t, n/2)
	}
}
