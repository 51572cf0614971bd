package bpf

import "testing"

// oldWaysToCut are by calls that this processor does not have.
func oldWaysToCut(*testing.T, string) []wayToCut { return nil }
