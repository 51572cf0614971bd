package verbs

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// From the best to the worst.
func TestGIDScore(t *testing.T) {
	last := 1 << 30
	for _, g := range []struct {
		addr string
		kind int
	}{
		{"::ffff:10.9.0.1", 2}, {"fd00::1", 2}, {"fe80::1", 2},
		{"::ffff:10.9.0.1", 1}, {"fd00::1", 1}, {"fe80::1", 1},
	} {
		s := gidScore(netip.MustParseAddr(g.addr).As16(), g.kind)
		require.Less(t, s, last, "%s of type %d", g.addr, g.kind)
		last = s
	}
	require.GreaterOrEqual(t, gidScore(netip.MustParseAddr("fe80::1").As16(), 0), 0, "any entry is better than none")
}
