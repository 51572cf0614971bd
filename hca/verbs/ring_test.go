package verbs

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A ring is a queue: against a slice, with completions that end several
// requests at once, and with numbers of completions that are none.
func TestRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		max := rapid.IntRange(1, 20).Draw(t, "max")
		r := newRing(max)
		r.head = rapid.Uint32().Draw(t, "start") // it may wrap at any time
		r.tail = r.head
		type posted struct {
			slot uint32
			id   uint64
		}
		var model []posted
		next := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				if len(model) == max {
					require.True(t, r.full())
					return
				}
				require.False(t, r.full())
				slot := r.push(request{id: next})
				for _, p := range model {
					require.NotEqual(t, p.slot, slot, "a slot in use was given out")
				}
				model = append(model, posted{slot, next})
				next++
			},
			"push and take back": func(t *rapid.T) {
				if !r.full() {
					r.push(request{id: 1 << 60})
					r.unpush()
				}
			},
			"complete": func(t *rapid.T) {
				if len(model) == 0 {
					return
				}
				k := rapid.IntRange(0, len(model)-1).Draw(t, "which")
				slot := model[k].slot
				require.EqualValues(t, k+1, r.upTo(slot))
				for _, p := range model[:k+1] {
					q, ok := r.pop()
					require.True(t, ok)
					require.Equal(t, p.id, q.id)
				}
				model = model[k+1:]
				require.Zero(t, r.upTo(slot), "it completed before")
			},
			"": func(t *rapid.T) { require.EqualValues(t, len(model), r.used()) },
		})
	})
}

// However few requests are signaled by the caller, a completion comes before
// the queue is full.
func TestRingSignalsInTime(t *testing.T) {
	for max := 1; max < 40; max++ {
		r := newRing(max)
		quiet := 0
		for range 10 * max {
			if r.mustSignal() {
				quiet, r.unsignaled = 0, 0
				continue
			}
			r.unsignaled++
			quiet++
			require.Less(t, quiet, max, "the queue of %d is full of requests without a completion", max)
		}
	}
}

func TestWireID(t *testing.T) {
	for range 1000 {
		index, gen, slot := rand.Uint32N(1<<indexBits), uint16(rand.Uint32()), rand.Uint32N(1<<slotBits)
		recv := rand.Uint32()%2 == 0
		w := makeWireID(index, gen, recv, slot)
		require.Equal(t, index, w.index())
		require.Equal(t, gen, w.gen())
		require.Equal(t, slot, w.slot())
		require.Equal(t, recv, w.recv())
	}
	require.Equal(t, 64, slotBits+genBits+indexBits+1)
}
