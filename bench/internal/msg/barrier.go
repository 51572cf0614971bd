package msg

import (
	"context"
	"fmt"

	"example.com/holdfast/hca"
)

// Barrier returns when the peer has come to a barrier as often as this end has.
// Each end tells the other by a message of no bytes over the queue pair, so
// that ranks in two processes wait for each other without a third party and
// without spinning; who has to wait sleeps in the completion queue. When it
// returns, everything that this end has sent has arrived. The ends leave it
// apart by the time of one such message at most, and of waking up. Errors as
// Send.
func (e *Endpoint) Barrier(ctx context.Context) error {
	e.barriers++
	if err := e.qp.PostSend(hca.SendWR{Op: hca.SendWithImm, Imm: e.barriers}); err != nil {
		return err
	}
	if err := e.waitSent(ctx); err != nil {
		return err
	}
	for e.met < e.barriers {
		if err := e.progress(ctx); err != nil {
			return err
		}
	}
	return nil
}

// meet notes that the peer has come to a barrier.
func (e *Endpoint) meet(wc hca.WC) error {
	if e.met++; wc.Imm != e.met {
		return fmt.Errorf("the peer came to barrier %d where %d was expected", wc.Imm, e.met)
	}
	return nil
}
