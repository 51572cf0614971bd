//go:build linux && cgo && verbs

package verbs

import (
	"testing"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
)

func TestSuite(t *testing.T) {
	var known []hcatest.Differs
	if open(t).softRoCE() {
		known = softRoCEDiffers
	}
	hcatest.Run(t, func(t *testing.T) (a, b hca.Device) { return open(t), open(t) }, known...)
}

const lostNak = "what the peer refuses ends with RETRY_EXC_ERR now and then, in place of REM_ACCESS_ERR"

// softRoCEDiffers are the parts in which rdma_rxe (Linux 7.2) answers otherwise
// than the InfiniBand specification. What it does instead, softroce_test.go
// shows part by part.
var softRoCEDiffers = []hcatest.Differs{
	{Part: "Register/StaleKey", Why: lostNak},
	{Part: "Refuse/PeerMemory", Why: lostNak},
	{Part: "OnDemand/HoleAtPeer", Why: lostNak},
	{Part: "OnDemand/ReadOnly", Why: lostNak},
	{Part: "OnDemand/LeftOver", Why: lostNak},
	{Part: "Atomic/Gone", Why: lostNak},
	{Part: "Refuse/OwnMemory", Why: "a request that fails at its own side completes with WR_FLUSH_ERR"},
	{Part: "Refuse/ReceiveMemory", Why: "a receive that fails completes with LOC_QP_OP_ERR, whatever was wrong"},
	{Part: "Refuse/ReceiveTooShort", Why: "a receive that fails completes with LOC_QP_OP_ERR, whatever was wrong"},
	{Part: "Atomic/OnDemand", Why: "on-demand paging is right at the beginning of a page only: see proveODP"},
	{Part: "Atomic/Refused", Why: "an atomic on a word that is not aligned is refused when it is posted"},
	{Part: "Queue/Flush", Why: "an error overtakes requests that wait for a receive"},
	{Part: "Queue/NotReadyRaces", Why: "20,000 rounds are too many for an emulated machine; TestNotReadyRaces has fewer"},
	{Part: "Queue/Overflow", Why: "completions come later than the post, and an overflowed queue is dead"},
	{Part: "OnDemand/HoleAtSource", Why: "a request that fails at its own side completes with WR_FLUSH_ERR"},
	{Part: "OnDemand/HoleInReceive", Why: "a receive that fails completes with LOC_QP_OP_ERR, whatever was wrong"},
}
