package verbs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRNRTimer(t *testing.T) {
	require.Equal(t, 14, rnrTimer(0), "1 ms is the default, and 0.96 would be too short")
	require.Equal(t, 1, rnrTimer(1))
	require.Equal(t, 1, rnrTimer(10*time.Microsecond))
	require.Equal(t, 2, rnrTimer(10*time.Microsecond+1))
	require.Equal(t, 31, rnrTimer(491520*time.Microsecond))
	require.Equal(t, 0, rnrTimer(time.Hour), "the longest there is has the number 0")
	for i := 2; i < len(rnrTimers); i++ {
		require.Greater(t, rnrTimers[i], rnrTimers[i-1])
	}
}

func TestRNRRetry(t *testing.T) {
	for n, want := range map[int]int{0: 7, -1: 0, 1: 1, 6: 6, 7: 6, 100: 6} {
		require.Equal(t, want, rnrRetry(n), "RNRRetry %d", n)
	}
}
