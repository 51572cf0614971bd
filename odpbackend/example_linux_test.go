package odpbackend_test

import (
	"context"
	"fmt"
	"log"

	"example.com/holdfast/hca"
	"example.com/holdfast/hcasim"
	"example.com/holdfast/odpbackend"
	"example.com/holdfast/regcache"
)

// A buffer is made ready for the peer's write while the two are still talking
// about it.
func ExamplePrefetcher() {
	dev, err := hcasim.Open(hcasim.Live{})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	backend, err := odpbackend.New(dev, odpbackend.Config{})
	if err != nil {
		log.Fatal(err)
	}
	cache, err := regcache.New(backend, regcache.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	prefetcher, err := odpbackend.NewPrefetcher(dev, odpbackend.PrefetchConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer prefetcher.Close()
	done, err := odpbackend.NewQueue(16)
	if err != nil {
		log.Fatal(err)
	}

	buf := make([]byte, 1<<20)
	r, err := cache.GetBytes(buf, hca.LocalWrite|hca.RemoteWrite)
	if err != nil {
		log.Fatal(err)
	}
	defer r.Release()
	if err := prefetcher.Post(done, 1, r.SGE(buf), true); err != nil {
		fmt.Println("not prefetched, which does no harm:", err)
	}
	// Here the peer is told r.Remote(buf). Before it writes:
	if err := done.Wait(context.Background()); err != nil {
		log.Fatal(err)
	}
	var wc [1]hca.WC
	if _, err := done.Poll(wc[:]); err != nil {
		log.Fatal(err)
	}
	prefetcher.Used(r.SGE(buf))
	fmt.Println("failed:", wc[0].Err, "useful:", prefetcher.Stats().UsefulPages > 0)
	// Output: failed: <nil> useful: true
}
