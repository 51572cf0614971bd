package rig

import (
	"errors"
	"fmt"

	"example.com/holdfast/bench/internal/memory"
	"example.com/holdfast/hca"
	"example.com/holdfast/hcasim"
	"example.com/holdfast/intercept"
)

// Rig is two devices and a monitor.
type Rig struct {
	Devices [2]hca.Device
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
	// Device is "live", two adapters in software that share a fabric, or
	// "verbs:NAME", a real adapter twice.
	Device string
	// TrustODP uses on-demand paging of a real adapter that is right for whole
	// pages only: see verbs.Config. Buffers here begin at the beginning of a
	// page, and every byte is checked.
	TrustODP bool
}

// Open opens two devices that can reach each other, and the best monitor that
// the machine has. Errors are those of the devices and of intercept.
func Open(cfg Config) (g *Rig, err error) {
	g = &Rig{}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
			g = nil
		}
	}()
	if adapter, ok := verbsName(cfg.Device); ok {
		err = g.openVerbs(adapter, cfg.TrustODP)
	} else {
		err = g.openLive()
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

// openLive opens two adapters in software.
func (g *Rig) openLive() (err error) {
	if g.fabric, err = hcasim.NewFabric(hcasim.FabricConfig{}); err != nil {
		return err
	}
	return g.fill(func(i int) (hca.Device, error) {
		return hcasim.Open(hcasim.Live{Fabric: g.fabric, Name: fmt.Sprintf("live%d", i)})
	})
}

// fill opens the devices.
func (g *Rig) fill(open func(i int) (hca.Device, error)) error {
	for i := range g.Devices {
		dev, err := open(i)
		if err != nil {
			return err
		}
		g.Devices[i] = dev
	}
	return nil
}

// Lines say what runs, one line each: the form of the device and what it
// lacks, and the source of events and why it is not a better one.
func (g *Rig) Lines() [][2]string {
	at := g.Devices[0].Attr()
	source := g.Monitor.String()
	if g.Monitor.Lesser() != nil {
		source += "; buffers are mapped through it"
	}
	return [][2]string{
		{"Devices", at.Name + " and " + g.Devices[1].Attr().Name + ": " + at.Form},
		{"Interception", source},
	}
}

// Close gives everything back.
func (g *Rig) Close() error {
	var errs []error
	for _, d := range g.Devices {
		if d != nil {
			errs = append(errs, d.Close())
		}
	}
	if g.fabric != nil {
		errs = append(errs, g.fabric.Close())
	}
	if g.Monitor != nil {
		errs = append(errs, g.Monitor.Close())
	}
	return errors.Join(errs...)
}
