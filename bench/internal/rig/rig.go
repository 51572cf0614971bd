package rig

import (
	"errors"
	"fmt"
	"strings"

	"example.com/holdfast/bench/internal/memory"
	"example.com/holdfast/hca"
	"example.com/holdfast/hcasim"
	"example.com/holdfast/intercept"
)

// Rig is the devices of the ranks in this process, and a monitor.
type Rig struct {
	Devices []hca.Device // one for each of Config.Ranks
	Monitor *intercept.Monitor
	Mapper  memory.Mapper
	fabric  *hcasim.Fabric
}

// CheckDevice says what is wrong with the name of a device, in words for the
// command line.
func CheckDevice(name string) error {
	if adapter, ok := verbsName(name); ok {
		return checkVerbs(name, adapter)
	}
	if name != "live" {
		return fmt.Errorf("%q is neither live nor verbs:NAME", name)
	}
	return nil
}

// Config says what to open.
type Config struct {
	// Device is "live", adapters in software that share a fabric, or
	// "verbs:NAME", a real adapter opened once for each rank.
	Device string
	// TrustODP uses on-demand paging of a real adapter that is right for whole
	// pages only: see verbs.Config. Buffers here begin at the beginning of a
	// page, and every byte is checked.
	TrustODP bool
	// Ranks are those that this process plays, of 0 and 1. nil: both.
	Ranks []int
}

// Open opens a device for each rank of this process, which can reach each other, and the best
// monitor that the machine has. Errors are those of the devices and of intercept.
func Open(cfg Config) (g *Rig, err error) {
	g = &Rig{}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
			g = nil
		}
	}()
	ranks := cfg.Ranks
	if ranks == nil {
		ranks = []int{0, 1}
	}
	if adapter, ok := verbsName(cfg.Device); ok {
		err = g.openVerbs(ranks, adapter, cfg.TrustODP)
	} else {
		err = g.openLive(ranks)
	}
	if err != nil {
		return g, err
	}
	if g.Monitor, err = intercept.Auto(); err != nil {
		return g, err
	}
	g.Mapper = memory.Raw{}
	if g.Monitor.Lesser() != nil {
		g.Mapper = memory.Owned{Monitor: g.Monitor}
	}
	return g, nil
}

// openLive opens adapters in software.
func (g *Rig) openLive(ranks []int) (err error) {
	if g.fabric, err = hcasim.NewFabric(hcasim.FabricConfig{}); err != nil {
		return err
	}
	return g.fill(ranks, func(rank int) (hca.Device, error) {
		return hcasim.Open(hcasim.Live{Fabric: g.fabric, Name: fmt.Sprintf("live%d", rank)})
	})
}

// fill opens the devices.
func (g *Rig) fill(ranks []int, open func(rank int) (hca.Device, error)) error {
	for _, rank := range ranks {
		dev, err := open(rank)
		if err != nil {
			return err
		}
		g.Devices = append(g.Devices, dev)
	}
	return nil
}

// Lines say what runs, one line each: the form of the device and what it
// lacks, and the source of events and why it is not a better one.
func (g *Rig) Lines() [][2]string {
	var names []string
	for _, d := range g.Devices {
		names = append(names, d.Attr().Name)
	}
	source := g.Monitor.String()
	if g.Monitor.Lesser() != nil {
		source += "; buffers are mapped through it"
	}
	return [][2]string{
		{"Devices", strings.Join(names, " and ") + ": " + g.Devices[0].Attr().Form},
		{"Interception", source},
	}
}

// Close gives everything back.
func (g *Rig) Close() error {
	var errs []error
	for _, d := range g.Devices {
		errs = append(errs, d.Close())
	}
	if g.fabric != nil {
		errs = append(errs, g.fabric.Close())
	}
	if g.Monitor != nil {
		errs = append(errs, g.Monitor.Close())
	}
	return errors.Join(errs...)
}
