package debugregcache_test

import (
	"expvar"
	"fmt"
	"net/http"
	"net/http/httptest"

	"example.com/holdfast/hcasim"
	"example.com/holdfast/intercept"
	"example.com/holdfast/pinbackend"
	"example.com/holdfast/regcache"
	"example.com/holdfast/regcache/debugregcache"
)

func Example() {
	dev, err := hcasim.Open(hcasim.Live{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	mon, err := intercept.Auto()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer mon.Close()
	cache, err := regcache.New(pinbackend.New(dev), regcache.Config{Monitor: mon})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cache.Close()

	seen := debugregcache.Named{Name: "live0", Cache: cache, Monitor: mon}
	mux := http.NewServeMux() // beside /debug/pprof, as a rule
	mux.Handle("/debug/regcache", debugregcache.Handler(seen))
	expvar.Publish("regcache", debugregcache.Var(seen))

	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest("GET", "/debug/regcache?format=text", nil))
	fmt.Println(answer.Code)
	// Output: 200
}
