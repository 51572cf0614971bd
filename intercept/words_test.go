package intercept

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"example.com/holdfast/hca"
)

// ownedWord is the word by Watch of memory that must be owned.
func ownedWord(t require.TestingT, m *Monitor, r hca.Range) *atomic.Uint64 {
	w := m.Watch(r)
	require.Equal(t, hca.MemOwned, w.Kind)
	return w.Counter
}

// The end of a piece of owned memory is counted on its word before the operation
// begins, and that of another is not.
func TestWords(t *testing.T) {
	m := explicit(t)
	a, b := pages(0, 8), pages(8, 8) // side by side
	require.NoError(t, m.Adopt(a))
	require.NoError(t, m.Adopt(b))
	wa, wb := ownedWord(t, m, a), ownedWord(t, m, b)
	require.NotNil(t, wa)
	require.NotNil(t, wb)
	require.NotSame(t, wa, wb)
	require.NotSame(t, m.Counter(), wa)
	require.Same(t, wa, ownedWord(t, m, pages(3, 2)))
	require.Nil(t, ownedWord(t, m, pages(7, 2)), "of both: the monitor's counter serves")

	atA, atB, all := wa.Load(), wb.Load(), m.Counter().Load()
	moves := func(what string, ops func(), a, b uint64) {
		t.Helper()
		ops()
		require.Equal(t, atA+a*hca.CounterStep, wa.Load(), what)
		require.Equal(t, atB+b*hca.CounterStep, wb.Load(), what)
		atA, atB = wa.Load(), wb.Load()
	}
	var op Op
	moves("discard", func() { op = m.Begin(pages(2, 1), hca.CauseDiscard) }, 1, 0)
	moves("its end", func() { op.End() }, 0, 0)
	moves("the owner's", func() { m.Begin(pages(8, 1), hca.CauseOwner).End() }, 0, 1)
	moves("both", func() { m.Begin(pages(7, 2), hca.CauseDiscard).End() }, 1, 1)
	moves("none", func() { m.Begin(pages(20, 2), hca.CauseUnmap).End() }, 0, 0)
	moves("everything", func() { m.Begin(hca.Range{}, hca.CauseDiscard).End() }, 1, 1)
	moves("a byte of it", func() { m.Begin(hca.Range{Addr: pages(8, 1).Addr - 1, Len: 1}, hca.CauseDiscard).End() }, 1, 0)
	moves("unmap of a part", func() { m.Begin(pages(0, 1), hca.CauseUnmap).End() }, 1, 0)
	moves("what is no longer owned", func() { m.Begin(pages(0, 1), hca.CauseUnmap).End() }, 0, 0)
	moves("remap", func() { m.Begin(pages(1, 1), hca.CauseRemap).End() }, 1, 0)
	moves("disown", func() { require.NoError(t, m.Disown(pages(2, 1))) }, 1, 0)
	require.Equal(t, all+10*hca.CounterStep, m.Counter().Load(), "which counts everything")

	require.NoError(t, m.Close())
	require.NotZero(t, wa.Load()&hca.Unsettled, "nothing is vouched for any more")
	require.NotZero(t, wb.Load()&hca.Unsettled)
}

// Neighbours are one piece when there are very many.
func TestManyPieces(t *testing.T) {
	m := explicit(t)
	for i := range uint64(3 * manyPieces) {
		require.NoError(t, m.Adopt(pages(3*manyPieces-i, 1)))
		require.NoError(t, m.Adopt(pages(5*manyPieces+i, 1)))
	}
	require.LessOrEqual(t, len(m.own.owned.s), manyPieces+1)
	require.NotNil(t, ownedWord(t, m, pages(1, 1000)))
}

// What Watch answers for owned memory holds whatever is done: from the first
// operation on that ends a page of a range, or may, the word that was answered
// has moved.
func TestWordsSeeTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, err := Explicit()
		require.NoError(t, err)
		type answer struct {
			r    hca.Range
			word *atomic.Uint64
			at   uint64
		}
		var answers []answer // of which no operation has touched the range yet
		var ops []Op
		draw := func(t *rapid.T) hca.Range {
			return pages(rapid.Uint64Range(0, 15).Draw(t, "first"), rapid.Uint64Range(1, 8).Draw(t, "pages"))
		}
		ended := func(r hca.Range) {
			left := answers[:0]
			for _, a := range answers {
				if a.r.Overlaps(r) {
					require.NotEqual(t, a.at, a.word.Load(), "%v ended and %v was not told", r, a.r)
				} else {
					left = append(left, a)
				}
			}
			answers = left
		}
		t.Repeat(map[string]func(*rapid.T){
			"adopt":  func(t *rapid.T) { require.NoError(t, m.Adopt(draw(t))) },
			"disown": func(t *rapid.T) { r := draw(t); require.NoError(t, m.Disown(r)); ended(r) },
			"begin": func(t *rapid.T) {
				r := draw(t)
				cause := rapid.SampledFrom([]hca.Cause{hca.CauseUnmap, hca.CauseRemap, hca.CauseDiscard, hca.CauseOwner}).Draw(t, "cause")
				ops = append(ops, m.Begin(r, cause))
				ended(r)
			},
			"end": func(t *rapid.T) {
				if len(ops) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(ops)-1).Draw(t, "which")
				if rapid.Bool().Draw(t, "failed") {
					ops[i].finish(ops[i].owned) // as mremap does when it has changed nothing
				} else {
					ops[i].End()
				}
				ops = append(ops[:i], ops[i+1:]...)
			},
			"watch": func(t *rapid.T) {
				r := draw(t)
				if w := m.Watch(r); w.Kind == hca.MemOwned {
					word := w.Counter
					if word == nil {
						word = m.Counter()
					}
					answers = append(answers, answer{r, word, word.Load()})
				}
			},
		})
		require.NoError(t, m.Close())
		for _, a := range answers {
			require.NotZero(t, a.word.Load()&hca.Unsettled, "nothing is vouched for any more")
		}
	})
}
