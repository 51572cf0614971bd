package debugregcache

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"example.com/holdfast/hca"
)

// How numbers are written for people.

// process says which one this is.
func process() string { return fmt.Sprintf("%s (pid %d)", filepath.Base(os.Args[0]), os.Getpid()) }

// grouped writes n with a thin gap every three digits: 1 234 567.
func grouped[T int | uint64](n T) string {
	s := strconv.FormatUint(uint64(n), 10)
	out := make([]byte, 0, len(s)+len(s)/3)
	for i := range len(s) {
		if i > 0 && (len(s)-i)%3 == 0 {
			out = append(out, ' ')
		}
		out = append(out, s[i])
	}
	return string(out)
}

func byteString(n uint64) string { return hca.Bytes(n).String() }

// seconds writes a length of time with the units that matter: 0.3 s, 12 s, 3 min
// 20 s, 2 h 5 min, 3 d 4 h.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%d d %d h", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

func percent(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return min(100*part/whole, 100)
}

// ratio writes a share, with more digits the nearer it is to all.
func ratio(r *float64) string {
	switch {
	case r == nil:
		return "–"
	case *r == 1:
		return "100 %"
	case *r < 0.99:
		return fmt.Sprintf("%.1f %%", 100**r)
	case *r < 0.9999:
		return fmt.Sprintf("%.2f %%", 100**r)
	}
	return fmt.Sprintf("%.4f %%", math.Floor(1e6**r)/1e4) // not all is not 100 %
}
