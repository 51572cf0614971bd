package debugregcache

import (
	"math/bits"
	"slices"
	"time"

	"example.com/holdfast/hca"
	"example.com/holdfast/regcache"
)

// bin is one bar of a histogram: the Regions whose size or age is below To and
// not below From (for sizes: at most To and above From).
type bin struct {
	Label   string   `json:"label"`
	From    float64  `json:"from"`
	To      *float64 `json:"to"` // null: no end
	Regions int      `json:"regions"`
	Bytes   uint64   `json:"bytes"`
}

func (b *bin) add(r *regcache.RegionInfo) {
	b.Regions++
	b.Bytes += r.Range.Len
}

// sizes counts Regions by size, in powers of two, from the smallest that there is
// to the largest.
func sizes(list []regcache.RegionInfo) []bin {
	var all [65]bin
	lo, hi := len(all), -1
	for i := range list {
		k := bits.Len64(list[i].Range.Len - 1) // 2^(k-1) < length <= 2^k
		lo, hi = min(lo, k), max(hi, k)
		all[k].add(&list[i])
	}
	bins := []bin{}
	for k := lo; k <= hi; k++ {
		b := all[k]
		b.Label = "> 8 EiB"
		if k < 64 {
			to := float64(uint64(1) << k)
			b.To = &to
			b.Label = "≤ " + hca.Bytes(1<<k).String()
		}
		if k > 0 {
			b.From = float64(uint64(1) << (k - 1))
		}
		bins = append(bins, b)
	}
	return bins
}

// ages counts Regions by age.
func ages(list []regcache.RegionInfo) []bin {
	limits := []struct {
		label string
		d     time.Duration
	}{{"1 s", time.Second}, {"10 s", 10 * time.Second}, {"1 min", time.Minute}, {"10 min", 10 * time.Minute},
		{"1 h", time.Hour}, {"6 h", 6 * time.Hour}, {"1 d", 24 * time.Hour}, {"1 week", 7 * 24 * time.Hour}}
	bins := make([]bin, len(limits)+1)
	for i, l := range limits {
		to := l.d.Seconds()
		bins[i].Label, bins[i].To = "< "+l.label, &to
		bins[i+1].Label, bins[i+1].From = "≥ "+l.label, to
	}
	for i := range list {
		k := 0
		for k < len(limits) && list[i].Age >= limits[k].d {
			k++
		}
		bins[k].add(&list[i])
	}
	// Without the long ages that nothing has reached yet, but never nothing.
	last := len(bins) - 1
	for last > 3 && bins[last].Regions == 0 {
		last--
	}
	return bins[:last+1]
}

// top gives the n elements of the largest weight, largest first, those of equal
// weight in the order of the list; never one of weight 0.
func top(list []regcache.RegionInfo, n int, weight func(*regcache.RegionInfo) uint64) []*regcache.RegionInfo {
	type weighed struct {
		r *regcache.RegionInfo
		w uint64
	}
	var best []weighed // largest first, at most n
	for i := range list {
		w := weight(&list[i])
		if w == 0 || n == 0 || len(best) == n && best[n-1].w >= w {
			continue
		}
		at, _ := slices.BinarySearchFunc(best, w, func(b weighed, w uint64) int {
			if b.w >= w {
				return -1
			}
			return 1
		})
		if len(best) == n {
			best = best[:n-1]
		}
		best = slices.Insert(best, at, weighed{&list[i], w})
	}
	out := make([]*regcache.RegionInfo, len(best))
	for i, b := range best {
		out[i] = b.r
	}
	return out
}
