package debugregcache

import (
	"fmt"
	"time"

	"example.com/holdfast/hca"
	"example.com/holdfast/regcache"
	"example.com/holdfast/regcache/internal/figures"
)

// Named is a cache and what to call it.
type Named struct {
	Name  string // for people; empty: the name of the cache's backend
	Cache *regcache.Cache
	// Monitor adds what the monitor itself counts: an *intercept.Monitor, as a
	// rule the one in the cache's Config. nil: only the cache's side is shown.
	Monitor interface{ Stats() hca.MonitorStats }
}

// The report and its parts are what the JSON form shows. Numbers of one cache
// are of two moments: Stats was asked first, then Snapshot.
type report struct {
	Version int           `json:"version"`
	Time    time.Time     `json:"time"`
	Process string        `json:"process"`
	Caches  []cacheReport `json:"caches"`
}

type cacheReport struct {
	Name    string `json:"name"`
	Backend string `json:"backend"`
	Monitor string `json:"monitor"`
	Config  string `json:"config"`

	HitRatio *float64          `json:"hit_ratio"` // null while there was no Get
	Counts   map[string]uint64 `json:"counts"`
	Now      map[string]uint64 `json:"now"`
	Regions  limit             `json:"regions"`
	Pinned   limit             `json:"pinned"`

	States []group `json:"states"`
	Kinds  []group `json:"kinds"`
	Sizes  []bin   `json:"sizes"`
	Ages   []bin   `json:"ages"`

	UsedOnce []reason     `json:"used_once"`
	Sees     *monitorSees `json:"monitor_sees,omitempty"`

	Busiest []region `json:"busiest,omitempty"`
	Oldest  []region `json:"oldest,omitempty"`
	Next    []region `json:"next_to_go,omitempty"`
	All     []region `json:"all_regions,omitempty"`

	figures []figure // counts and now, in order
}

// limit is how much of what may be kept is used.
type limit struct {
	Used uint64  `json:"used"`
	Max  *uint64 `json:"max"` // null: no limit
}

// group is a number of Regions that have something in common.
type group struct {
	Name    string `json:"name"`
	Regions int    `json:"regions"`
	Bytes   uint64 `json:"bytes"` // that they cover
	Pinned  uint64 `json:"pinned"`
}

// reason is why Regions were used only once, and how many.
type reason struct {
	Name   string `json:"name"`
	Text   string `json:"text"`
	Advice string `json:"advice"`
	Count  uint64 `json:"count"`
}

// region is one Region.
type region struct {
	Start      string  `json:"start"`
	End        string  `json:"end"`
	Bytes      uint64  `json:"bytes"`
	Access     string  `json:"access"`
	Kind       string  `json:"kind"`
	State      string  `json:"state"`
	Why        string  `json:"why,omitempty"`
	References int     `json:"references"`
	Hits       uint64  `json:"hits"`
	Age        float64 `json:"age_seconds"`
	Unused     float64 `json:"unused_seconds"`
	LKey       uint32  `json:"lkey"`
	RKey       uint32  `json:"rkey"`
	Pinned     uint64  `json:"pinned"`
}

// monitorSees is what the monitor counts.
type monitorSees struct {
	Source    string   `json:"source"`
	Unmaps    uint64   `json:"unmaps"`
	Remaps    uint64   `json:"remaps"`
	Discards  uint64   `json:"discards"`
	Reads     uint64   `json:"reads"`
	Announced uint64   `json:"announced"`
	Lost      uint64   `json:"lost"`
	Watches   uint64   `json:"watches"`
	Foreign   uint64   `json:"watched_foreign"`
	Unknown   []reason `json:"watched_unknown"`
	Feeds     int      `json:"feeds"`
	Known     int      `json:"known_ranges"`
	Doubted   int      `json:"doubted_ranges"`
}

// figure is a number with its meaning.
type figure struct {
	figures.Figure
	N uint64
}

// detail is how much of the Regions a report tells.
type detail struct {
	top int  // Regions in each list
	all bool // all Regions too
}

// makeReport looks at every cache.
func makeReport(caches []Named, d detail) report {
	r := report{Version: 1, Time: time.Now(), Process: process(), Caches: []cacheReport{}}
	for _, c := range caches {
		r.Caches = append(r.Caches, reportOf(c, d))
	}
	return r
}

func reportOf(n Named, d detail) cacheReport {
	s := n.Cache.Stats()
	c := cacheReport{
		Name: n.Name, Backend: s.Backend, Monitor: s.Monitor, Config: n.Cache.Config().String(),
		Counts: map[string]uint64{}, Now: map[string]uint64{},
		Regions: limitOf(uint64(s.Registered), uint64(s.MaxRegions)), Pinned: limitOf(s.BytesPinned, s.MaxBytes),
		UsedOnce: reasons(s.UsedOnce),
	}
	if c.Name == "" {
		c.Name = s.Backend
	}
	for _, f := range figures.All() {
		v := f.Value(&s)
		c.figures = append(c.figures, figure{f, v})
		if f.Count {
			c.Counts[f.Name] = v
		} else {
			c.Now[f.Name] = v
		}
	}
	if s.MaxBytes == figures.Unlimited {
		delete(c.Now, "max_pinned") // "pinned" says that there is none
	}
	if gets := s.Hits + s.Misses; gets > 0 {
		ratio := float64(s.Hits) / float64(gets)
		c.HitRatio = &ratio
	}
	if n.Monitor != nil {
		c.Sees = seenBy(n.Monitor.Stats())
	}
	c.regions(n.Cache.Snapshot(), d)
	return c
}

// regions fills in what is told of the Regions.
func (c *cacheReport) regions(list []regcache.RegionInfo, d detail) {
	c.States = make([]group, regcache.NumRegionStates)
	for s := range c.States {
		c.States[s].Name = regcache.RegionState(s).String()
	}
	c.Kinds = make([]group, hca.MemHeld+1)
	for k := range c.Kinds {
		c.Kinds[k].Name = hca.MemKind(k).String()
	}
	for i := range list {
		r := &list[i]
		c.States[r.State].add(r)
		c.Kinds[r.Kind].add(r)
	}
	c.Sizes, c.Ages = sizes(list), ages(list)
	c.Busiest = regionsOf(top(list, d.top, func(r *regcache.RegionInfo) uint64 { return r.Hits }))
	c.Oldest = regionsOf(top(list, d.top, func(r *regcache.RegionInfo) uint64 { return uint64(r.Age) + 1 }))
	c.Next = regionsOf(top(list, d.top, func(r *regcache.RegionInfo) uint64 {
		if r.State != regcache.RegionIdle {
			return 0
		}
		return uint64(r.Unused) + 1
	}))
	if d.all {
		all := make([]*regcache.RegionInfo, len(list))
		for i := range list {
			all[i] = &list[i]
		}
		c.All = regionsOf(all)
	}
}

func (g *group) add(r *regcache.RegionInfo) {
	g.Regions++
	g.Bytes += r.Range.Len
	g.Pinned += r.Pinned
}

func limitOf(used, most uint64) limit {
	if most == figures.Unlimited {
		return limit{Used: used}
	}
	return limit{Used: used, Max: &most}
}

// reasons lists those that came up.
func reasons(counts [hca.NumUnkept]uint64) []reason {
	list := []reason{}
	for u, n := range counts {
		if u := hca.Unkept(u); n > 0 {
			list = append(list, reason{figures.Reason(u), u.String(), figures.Advice(u), n})
		}
	}
	return list
}

func regionsOf(list []*regcache.RegionInfo) []region {
	out := make([]region, len(list))
	for i, r := range list {
		out[i] = region{
			Start: fmt.Sprintf("%#x", r.Range.Addr), End: fmt.Sprintf("%#x", r.Range.End()), Bytes: r.Range.Len,
			Access: r.Access.String(), Kind: r.Kind.String(), State: r.State.String(), Why: r.Why,
			References: r.References, Hits: r.Hits, Age: r.Age.Seconds(), Unused: r.Unused.Seconds(),
			LKey: r.LKey, RKey: r.RKey, Pinned: r.Pinned,
		}
	}
	return out
}

func seenBy(s hca.MonitorStats) *monitorSees {
	return &monitorSees{
		Source: s.Source, Unmaps: s.Unmaps, Remaps: s.Remaps, Discards: s.Discards, Reads: s.Reads,
		Announced: s.Announced, Lost: s.Lost, Watches: s.Watches, Foreign: s.Foreign, Unknown: reasons(s.Unknown),
		Feeds: s.Feeds, Known: s.Known, Doubted: s.Taints,
	}
}
