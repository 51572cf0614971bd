//go:build linux && cgo && verbs

package verbs

import (
	"slices"

	"example.com/holdfast/hca"
)

// PostRegister registers on a worker.
func (d *device) PostRegister(cq hca.CQ, id uint64, r hca.Range, a hca.Access) error {
	return d.postJob("post register", cq, nil, func() hca.WC {
		mr, err := d.Register(r, a)
		return hca.WC{ID: id, Op: hca.WCRegister, MR: mr, Err: err, Status: statusOf(err)}
	})
}

// PostAdvise advises on a worker, with the flushing form, so that the
// completion tells the truth. Keys are checked at once.
func (d *device) PostAdvise(cq hca.CQ, id uint64, advice hca.Advice, sgl []hca.SGE) error {
	kept := slices.Clone(sgl)
	check := func() error { return d.checkAdvise("post advise", advice, kept) }
	return d.postJob("post advise", cq, check, func() hca.WC {
		err := d.Advise(advice, kept)
		return hca.WC{ID: id, Op: hca.WCAdvise, Err: err, Status: statusOf(err)}
	})
}

func (d *device) postJob(op string, cq hca.CQ, check func() error, work func() hca.WC) error {
	if err := d.enter(op); err != nil {
		return err
	}
	defer d.exit()
	q, err := d.ownCQ(op, cq)
	if err != nil {
		return err
	}
	if check != nil {
		if err := check(); err != nil {
			return err
		}
	}
	if err := q.expect(op); err != nil {
		return err
	}
	if !d.jobs.post(func() {
		wc := work()
		d.jobs.done()
		q.deliver(wc)
	}) {
		q.unexpect()
		return d.op(op, hca.ErrQueueFull)
	}
	return nil
}

// statusOf is the status of a completion that carries err: success, or the
// general error, since Err says more than a status could.
func statusOf(err error) hca.WCStatus {
	if err != nil {
		return hca.WCGeneralErr
	}
	return hca.WCSuccess
}
