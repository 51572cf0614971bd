package intercept_test

import (
	"fmt"
	"log"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
)

// A host that maps memory by its own means and says so. Auto, in the place of
// Explicit, has all other memory watched as well where the machine allows it.
func Example() {
	mon, err := intercept.Explicit()
	if err != nil {
		log.Fatal(err)
	}
	defer mon.Close()

	block := hca.Range{Addr: 0x7000_0000_0000, Len: 1 << 20} // mapped by the host
	if err := mon.Adopt(block); err != nil {
		log.Fatal(err)
	}
	fmt.Println("mapped:", mon.Watch(block).Kind)

	op := mon.Begin(block, hca.CauseUnmap)
	fmt.Println("going:", mon.Watch(block).Kind)
	// Here the host unmaps it.
	op.End()
	// Output:
	// mapped: owned
	// going: unknown
}
