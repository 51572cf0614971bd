package hcasim

import (
	"fmt"
	"sync"

	"example.com/holdfast/hca"
)

// workers run what was posted to the device itself: registrations and advices.
// They start with the first request and end with the device.
type workers struct {
	n     int
	queue chan job
	done  sync.WaitGroup

	mu      sync.Mutex
	started bool
	left    int // posted and not complete
}

// job is a posted request. The device runs it and completes it on cq.
type job struct {
	dev    *Device
	cq     *completionQueue
	id     uint64
	op     hca.WCOp
	rng    hca.Range
	access hca.Access
	advice hca.Advice
	sgl    []hca.SGE
}

func (w *workers) init(n, depth int) {
	if n == 0 {
		n = 2
	}
	if depth == 0 {
		depth = 1024
	}
	w.n, w.queue = n, make(chan job, depth)
}

// PostRegister starts Register: see hca.Device. ErrQueueFull if Live.PostDepth
// requests wait.
func (d *Device) PostRegister(cq hca.CQ, id uint64, r hca.Range, a hca.Access) error {
	return d.postJob("post register", cq, job{id: id, op: hca.WCRegister, rng: r, access: a})
}

// PostAdvise starts Advise: see hca.Device. ErrQueueFull if Live.PostDepth
// requests wait.
func (d *Device) PostAdvise(cq hca.CQ, id uint64, advice hca.Advice, sgl []hca.SGE) error {
	const op = "post advise"
	if err := d.checkAdvice(advice); err != nil {
		return d.wrap(op, hca.Range{}, err)
	}
	for _, s := range sgl {
		reg, err := d.adviseRegion(advice, s)
		if err != nil {
			return d.wrap(op, s.Range(), err)
		}
		if reg != nil {
			reg.release()
		}
	}
	return d.postJob(op, cq, job{id: id, op: hca.WCAdvise, advice: advice, sgl: sgl})
}

func (d *Device) postJob(op string, cq hca.CQ, j job) error {
	j.dev, j.cq = d, d.ownCQ(cq)
	if j.cq == nil {
		e := d.err(op, hca.ErrInvalid)
		e.Detail = "the completion queue is not of this device"
		return e
	}
	// Under the device's lock, so that Close either sees the job or is first.
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return d.err(op, hca.ErrClosed)
	}
	if !j.cq.hold() {
		e := d.err(op, hca.ErrClosed)
		e.Detail = "the completion queue"
		return e
	}
	if !d.work.add(j) {
		j.cq.drop()
		e := d.err(op, hca.ErrQueueFull)
		e.Detail = fmt.Sprintf("%d requests wait", cap(d.work.queue))
		return e
	}
	return nil
}

func (w *workers) add(j job) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case w.queue <- j:
	default:
		return false
	}
	w.left++
	if !w.started {
		w.started = true
		for range w.n {
			w.done.Go(w.run)
		}
	}
	return true
}

func (w *workers) run() {
	for j := range w.queue {
		wc := j.run()
		// Not pending any more, and then complete: who sees the completion may
		// close the device. (Close waits for this goroutine.)
		w.mu.Lock()
		w.left--
		w.mu.Unlock()
		j.cq.pushLast(wc)
	}
}

func (j *job) run() hca.WC {
	wc := hca.WC{ID: j.id, Op: j.op}
	if j.op == hca.WCRegister {
		wc.MR, wc.Err = j.dev.Register(j.rng, j.access)
	} else {
		wc.Err = j.dev.Advise(j.advice, j.sgl)
	}
	if wc.Err != nil {
		wc.Status = hca.WCGeneralErr
	}
	return wc
}

// pending is how many posted requests are not complete.
func (w *workers) pending() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.left
}

// stop ends the workers. Nothing is pending and nothing more is added.
func (w *workers) stop() {
	close(w.queue)
	w.done.Wait()
}
