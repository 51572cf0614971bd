package verbs

import "time"

// rnrTimers are the waiting times that a min_rnr_timer of 1 to 31 stands for
// (InfiniBand specification, table of the RNR NAK timer field; also
// ibv_modify_qp(3)). 0 stands for 655.36 ms.
var rnrTimers = [...]time.Duration{
	1: 10 * time.Microsecond, 2: 20 * time.Microsecond, 3: 30 * time.Microsecond, 4: 40 * time.Microsecond,
	5: 60 * time.Microsecond, 6: 80 * time.Microsecond, 7: 120 * time.Microsecond, 8: 160 * time.Microsecond,
	9: 240 * time.Microsecond, 10: 320 * time.Microsecond, 11: 480 * time.Microsecond, 12: 640 * time.Microsecond,
	13: 960 * time.Microsecond, 14: 1280 * time.Microsecond, 15: 1920 * time.Microsecond, 16: 2560 * time.Microsecond,
	17: 3840 * time.Microsecond, 18: 5120 * time.Microsecond, 19: 7680 * time.Microsecond, 20: 10240 * time.Microsecond,
	21: 15360 * time.Microsecond, 22: 20480 * time.Microsecond, 23: 30720 * time.Microsecond, 24: 40960 * time.Microsecond,
	25: 61440 * time.Microsecond, 26: 81920 * time.Microsecond, 27: 122880 * time.Microsecond, 28: 163840 * time.Microsecond,
	29: 245760 * time.Microsecond, 30: 327680 * time.Microsecond, 31: 491520 * time.Microsecond,
}

// rnrTimer is the field for the shortest waiting time of at least d; what is
// longer than all gets the longest.
func rnrTimer(d time.Duration) int {
	if d <= 0 {
		d = time.Millisecond
	}
	for i, t := range rnrTimers {
		if i > 0 && t >= d {
			return i
		}
	}
	return 0
}

// rnrRetry is the rnr_retry field for a QPConfig's RNRRetry: 0 means for ever
// there and is 7 here; three bits hold at most 6 counted tries.
func rnrRetry(n int) int {
	switch {
	case n == 0:
		return 7
	case n < 0:
		return 0
	}
	return min(n, 6)
}
