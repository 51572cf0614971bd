package memory

import (
	"fmt"
	"strings"
)

// Kind is a way to use buffers.
type Kind uint8

// The kinds, in the order in which they are reported.
const (
	Same        Kind = iota // one pair of buffers for all repetitions
	Fresh                   // mapped for each repetition and unmapped after it
	FreshSameVA             // the same, always at one address
	Pool                    // in turn out of more mappings than the cache may keep
	numKinds
)

var kindNames = [numKinds]string{"same", "fresh", "fresh-same-va", "pool"}

// String names the kind as the command line does.
func (k Kind) String() string {
	if k < numKinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Kinds lists them all.
func Kinds() []Kind { return []Kind{Same, Fresh, FreshSameVA, Pool} }

// ParseKinds reads a list of kinds separated by commas.
func ParseKinds(s string) ([]Kind, error) {
	var kinds []Kind
next:
	for _, name := range strings.Split(s, ",") {
		for k, known := range kindNames {
			if name == known {
				kinds = append(kinds, Kind(k))
				continue next
			}
		}
		return nil, fmt.Errorf("%q is none of %s", name, strings.Join(kindNames[:], ", "))
	}
	return kinds, nil
}
