package regcache_test

import (
	"fmt"
	"log"

	"example.com/holdfast/hca"
	"example.com/holdfast/hcasim"
	"example.com/holdfast/intercept"
	"example.com/holdfast/pinbackend"
	"example.com/holdfast/regcache"
)

// The twenty lines of the README.
func Example() {
	dev, err := hcasim.Open(hcasim.Live{}) // the adapter
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	mon, err := intercept.Auto() // who tells us that memory went away
	if err != nil {
		log.Fatal(err)
	}
	defer mon.Close()
	cache, err := regcache.New(pinbackend.New(dev), regcache.Config{Monitor: mon})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()

	buf := make([]byte, 64<<10)
	for range 1000 {
		r, err := cache.GetBytes(buf, hca.LocalWrite|hca.RemoteWrite) // registered from here
		if err != nil {
			log.Fatal(err)
		}
		_ = r.SGE(buf)    // goes into a work request posted here
		_ = r.Remote(buf) // goes to a peer that is to write into buf
		r.Release()       // to here, after the completion
	}
	s := cache.Stats()
	fmt.Println(s.Registrations, "registration,", s.Hits, "hits")
	// Output: 1 registration, 999 hits
}
