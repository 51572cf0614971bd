package hcatest

import (
	"testing"

	"example.com/holdfast/hca"
	"github.com/stretchr/testify/require"
)

// Open makes a pair of devices that can reach each other, and closes them at
// the end of the test with require.NoError: a device that answers ErrBusy then
// has lost something.
type Open func(t *testing.T) (a, b hca.Device)

// Differs says that a device answers otherwise than the suite wants in one
// part, named as in "Refuse/OwnMemory", and why. Run skips that part and gives
// the reason; a test of the device's own has to show what it does instead.
type Differs struct{ Part, Why string }

// Run runs the suite. Each part opens devices of its own.
func Run(t *testing.T, open Open, known ...Differs) {
	groups := []struct {
		name  string
		parts []part
	}{
		{"Register", registerParts},
		{"Transfer", transferParts},
		{"Atomic", atomicParts},
		{"Refuse", refuseParts},
		{"Queue", queueParts},
		{"Datagram", datagramParts},
		{"OnDemand", onDemandParts},
		{"Reregister", reregisterParts},
		{"Post", postParts},
		{"Close", closeParts},
	}
	why := map[string]string{} // of every part; empty: nothing known
	for _, g := range groups {
		for _, p := range g.parts {
			why[g.name+"/"+p.name] = ""
		}
	}
	for _, k := range known {
		require.Contains(t, why, k.Part, "no such part")
		why[k.Part] = k.Why
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			for _, p := range g.parts {
				t.Run(p.name, func(t *testing.T) {
					if w := why[g.name+"/"+p.name]; w != "" {
						t.Skipf("known to differ: %s", w)
					}
					a, b := open(t)
					if w := p.needs.missing(a.Attr()); w != "" {
						t.Skipf("%s cannot: %s", a.Attr().Name, w)
					}
					p.run(t, a, b)
				})
			}
		})
	}
}

// part is one test of the suite and what a device must be able to do for it.
type part struct {
	name  string
	needs need
	run   func(t *testing.T, a, b hca.Device)
}

// need is a set of capabilities.
type need struct {
	ops          hca.ODPOps // on-demand memory in these operations of RC
	implicit     bool       // one registration of the whole address space
	prefetch     bool       // Advise
	stale        bool       // pins that outlive the mapping
	writingPins  bool       // pins need writable memory
	ordinaryPins bool       // they do not
	datagrams    bool       // UD queue pairs
	noDatagrams  bool       // none
	changeAccess bool       // Reregister of what a registration allows
	changeRange  bool       // Reregister of its memory
}

func (n need) missing(a hca.Attr) string {
	switch {
	case !a.ODP.RC.Has(n.ops):
		return "has no on-demand paging for this operation"
	case n.implicit && !a.ODP.Implicit:
		return "cannot register the whole address space"
	case n.prefetch && !a.ODP.Prefetch:
		return "cannot prefetch"
	case n.stale && !a.StalePins:
		return "does not keep pages of memory that was unmapped"
	case n.writingPins && !a.PinsForWriting:
		return "pins for reading too"
	case n.ordinaryPins && a.PinsForWriting:
		return "pins always for writing"
	case n.datagrams && !a.UD:
		return "has no queue pairs for datagrams"
	case n.noDatagrams && a.UD:
		return "is without datagrams: it has them"
	case n.changeAccess && !a.Rereg.Access:
		return "cannot change what a registration allows"
	case n.changeRange && !a.Rereg.Range:
		return "cannot change the memory of a registration"
	}
	return ""
}

// fill writes a pattern that differs from that of other seeds everywhere.
func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*3 ^ byte(i>>16)*5 ^ seed
	}
}
