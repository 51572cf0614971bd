package rig

import (
	"fmt"
	"slices"
	"strings"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/verbs"
)

// verbsName is the adapter in the name of a real device: "verbs:mlx5_0" is
// mlx5_0, and "verbs:" the first one there is.
func verbsName(device string) (string, bool) { return strings.CutPrefix(device, "verbs:") }

func checkVerbs(device, adapter string) error {
	names, err := verbs.List()
	switch {
	case err != nil:
		return fmt.Errorf("%q: no verbs devices: %w", device, err)
	case len(names) == 0:
		return fmt.Errorf("%q: no verbs devices: libibverbs finds no adapter", device)
	case adapter != "" && !slices.Contains(names, adapter):
		return fmt.Errorf("%q: no verbs devices of that name; there is %s", device, strings.Join(names, ", "))
	}
	return nil
}

// openVerbs opens the adapter once for each rank: two protection domains, as
// two processes would have.
func (g *Rig) openVerbs(ranks []int, adapter string, trust bool) error {
	return g.fill(ranks, func(int) (hca.Device, error) { return verbs.Open(verbs.Config{Name: adapter, TrustODP: trust}) })
}
