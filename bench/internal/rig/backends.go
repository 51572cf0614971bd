package rig

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"example.com/holdfast/hca"
	"example.com/holdfast/odpbackend"
)

// prefetchSuffix makes the name of an on-demand backend that of the same with
// prefetch.
const prefetchSuffix = "+prefetch"

// plan is what a backend's name stands for.
type plan struct {
	kept     bool // registrations are kept in a cache
	onDemand bool
	mode     odpbackend.Mode // where onDemand
	prefetch bool            // each buffer is prefetched before its transfer
}

// plans are the backends by their names without that.
var plans = map[string]plan{
	"direct":      {},
	"pin":         {kept: true},
	"odp":         {kept: true, onDemand: true, mode: odpbackend.ModeAuto},
	"odp-whole":   {kept: true, onDemand: true, mode: odpbackend.ModeWhole},
	"odp-windows": {kept: true, onDemand: true, mode: odpbackend.ModeWindows},
	"odp-range":   {kept: true, onDemand: true, mode: odpbackend.ModeRange},
}

func planOf(name string) (p plan, ok bool) {
	base, prefetch := strings.CutSuffix(name, prefetchSuffix)
	p, ok = plans[base]
	p.prefetch = prefetch
	return p, ok && (p.onDemand || !prefetch)
}

// DefaultBackends are those of a run that names none: direct registers and
// deregisters every transfer, pin keeps pinned registrations in a cache, odp
// keeps on-demand ones of the best kind that the device has.
func DefaultBackends() []string { return []string{"direct", "pin", "odp"} }

// AllBackends are those that the word all stands for: every kind of on-demand
// registration by its name, without and with prefetch.
func AllBackends() []string {
	return []string{"direct", "pin", "odp-whole", "odp-whole" + prefetchSuffix, "odp-windows", "odp-windows" + prefetchSuffix,
		"odp-range", "odp-range" + prefetchSuffix}
}

// BackendNames says which names there are, for people.
const BackendNames = "direct, pin, odp, odp-whole, odp-windows, odp-range, the last four also with " + prefetchSuffix

// ParseBackends reads a list of names separated by commas, or the word all.
// named is false for all: who asks for all takes what there is, who names a
// backend wants that one.
func ParseBackends(s string) (names []string, named bool, err error) {
	if s == "all" {
		return AllBackends(), false, nil
	}
	for n := range strings.SplitSeq(s, ",") {
		if _, ok := planOf(n); !ok {
			return nil, false, fmt.Errorf("%q is none of %s", n, BackendNames)
		}
		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names, true, nil
}

// Lacks says why the devices of the rig cannot do a backend: an error that
// wraps hca.ErrNotSupported. It is nil where they can, or where something else
// is wrong, which NewPair then reports.
func (g *Rig) Lacks(backend string) error {
	p, _ := planOf(backend)
	if !p.onDemand {
		return nil
	}
	for _, dev := range g.Devices {
		if _, err := odpbackend.New(dev, odpbackend.Config{Mode: p.mode}); errors.Is(err, hca.ErrNotSupported) {
			return err
		}
		if p.prefetch && !dev.Attr().ODP.Prefetch {
			return &hca.OpError{Op: "prefetch", Device: dev.Attr().Name, Detail: "the device cannot", Err: hca.ErrNotSupported}
		}
	}
	return nil
}
