package prom_test

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/holdfast/hcasim"
	"example.com/holdfast/pinbackend"
	"example.com/holdfast/regcache"
	"example.com/holdfast/regcache/prom"
)

func Example() {
	dev, err := hcasim.Open(hcasim.Live{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	cache, err := regcache.New(pinbackend.New(dev), regcache.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cache.Close()

	reg := prometheus.NewRegistry()
	reg.MustRegister(prom.New(map[string]*regcache.Cache{dev.Attr().Name: cache}))
	families, err := reg.Gather() // what promhttp.HandlerFor(reg, ...) serves
	fmt.Println(len(families) > 20, err)
	// Output: true <nil>
}
