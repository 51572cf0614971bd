package pattern

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryByteCounts(t *testing.T) {
	for _, n := range []int{0, 1, 2, 7, 8, 9, 15, 64, 4096, 4099} {
		b := make([]byte, n)
		Fill(b, 42)
		require.Zero(t, Wrong(b, 42), n)
		for i := range b {
			b[i]++
			require.Equal(t, 1, Wrong(b, 42), "byte %d of %d", i, n)
			b[i]--
		}
	}
}

func TestOldBytesAreNeverTakenForNewOnes(t *testing.T) {
	for _, n := range []int{1, 8, 100} {
		b := make([]byte, n)
		for d := uint64(1); d < 256; d++ {
			Fill(b, 1000)
			require.NotZero(t, Wrong(b, 1000+d), "%d bytes, %d seeds later", n, d)
		}
		clear(b)
		for seed := uint64(1); seed < 256; seed++ {
			require.NotZero(t, Wrong(b, seed), "zeroes")
		}
	}
}

func BenchmarkFill(b *testing.B) {
	buf := make([]byte, 1<<20)
	b.SetBytes(int64(len(buf)))
	for i := 0; b.Loop(); i++ {
		Fill(buf, uint64(i))
	}
}

func BenchmarkWrong(b *testing.B) {
	buf := make([]byte, 1<<20)
	Fill(buf, 1)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if Wrong(buf, 1) != 0 {
			b.Fatal("wrong")
		}
	}
}
