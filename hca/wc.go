package hca

import "fmt"

// WC is a work completion.
type WC struct {
	ID     uint64   // of the request
	Status WCStatus // WCSuccess, or what went wrong
	Op     WCOp     // what completed; only ID, Status, QPN and Vendor hold if Status is an error
	QPN    uint32   // of the queue pair, 0 for WCRegister and WCAdvise
	Len    uint64   // bytes received, or moved by a read or atomic
	Imm    uint32   // if HasImm
	HasImm bool
	Vendor uint32 // vendor's own error number, for support
	MR     *MR    // for WCRegister without error
	Err    error  // for WCRegister and WCAdvise that failed
}

// WCStatus is how a request ended. Values and names as enum ibv_wc_status.
type WCStatus uint32

// The statuses (rdma-core, libibverbs/verbs.h).
const (
	WCSuccess        WCStatus = 0
	WCLocLenErr      WCStatus = 1  // a message longer than the receive, or longer than the device can
	WCLocQPOpErr     WCStatus = 2  // the queue pair cannot do that
	WCLocProtErr     WCStatus = 4  // own key, bounds, access or memory wrong
	WCWRFlushErr     WCStatus = 5  // not tried: the queue pair was in error before
	WCBadRespErr     WCStatus = 7  // the peer answered nonsense
	WCLocAccessErr   WCStatus = 8  // own memory refused the peer's access
	WCRemInvReqErr   WCStatus = 9  // the peer does not know such a request, or its receive was too short
	WCRemAccessErr   WCStatus = 10 // the peer's key, bounds, access or memory wrong
	WCRemOpErr       WCStatus = 11 // the peer could not do it
	WCRetryExcErr    WCStatus = 12 // the peer does not answer
	WCRNRRetryExcErr WCStatus = 13 // the peer had no receive ready, too often
	WCRemAbortErr    WCStatus = 16
	WCFatalErr       WCStatus = 19
	WCRespTimeoutErr WCStatus = 20
	WCGeneralErr     WCStatus = 21
)

var wcStatusNames = [...]string{
	0: "SUCCESS", 1: "LOC_LEN_ERR", 2: "LOC_QP_OP_ERR", 3: "LOC_EEC_OP_ERR", 4: "LOC_PROT_ERR",
	5: "WR_FLUSH_ERR", 6: "MW_BIND_ERR", 7: "BAD_RESP_ERR", 8: "LOC_ACCESS_ERR", 9: "REM_INV_REQ_ERR",
	10: "REM_ACCESS_ERR", 11: "REM_OP_ERR", 12: "RETRY_EXC_ERR", 13: "RNR_RETRY_EXC_ERR",
	14: "LOC_RDD_VIOL_ERR", 15: "REM_INV_RD_REQ_ERR", 16: "REM_ABORT_ERR", 17: "INV_EECN_ERR",
	18: "INV_EEC_STATE_ERR", 19: "FATAL_ERR", 20: "RESP_TIMEOUT_ERR", 21: "GENERAL_ERR",
	22: "TM_ERR", 23: "TM_RNDV_INCOMPLETE",
}

// String gives the name that verbs gives it, and for a status that is not
// known its number, so that nothing unknown reads like success.
func (s WCStatus) String() string {
	if int(s) < len(wcStatusNames) {
		return wcStatusNames[s]
	}
	return fmt.Sprintf("unknown status %d", uint32(s))
}

// Error makes a status other than WCSuccess usable as an error value.
func (s WCStatus) Error() string { return "completion with " + s.String() }

// WCOp is what kind of request completed.
type WCOp uint8

// The kinds of completion.
const (
	WCSend WCOp = iota
	WCRecv
	WCRecvRDMAWithImm
	WCRDMAWrite
	WCRDMARead
	WCAtomic
	WCRegister // Device.PostRegister
	WCAdvise   // Device.PostAdvise
)
