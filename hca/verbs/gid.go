package verbs

import "net/netip"

// gidScore ranks the entries of a port's address table; the highest serves
// best. kind is enum ibv_gid_type: 0 InfiniBand, 1 RoCE v1, 2 RoCE v2. Version
// 2 travels in UDP and is routed, so it comes before 1; an IPv4 address is
// what people give their adapters on purpose; an address that is only good on
// its own link comes last. Equal ones: the first.
func gidScore(raw [16]byte, kind int) int {
	score := 10 * kind
	a := netip.AddrFrom16(raw)
	switch {
	case a.Is4In6():
		score += 3
	case !a.IsLinkLocalUnicast():
		score += 2
	}
	return score
}
