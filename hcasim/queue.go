package hcasim

import "example.com/holdfast/hca"

// request is a posted send, receive or RDMA request. Its elements are a copy,
// in memory that belongs to its place in the queue.
type request struct {
	wr    hca.SendWR // a receive uses only ID
	sges  []hca.SGE
	total uint64 // bytes in sges
}

// workQueue is a ring of requests of fixed size. The queue pair's lock guards
// it; the head may be read without the lock by who executes it, because
// nothing takes it away meanwhile.
type workQueue struct {
	ring []request
	head int
	n    int
}

func newWorkQueue(depth, sges int) workQueue {
	q := workQueue{ring: make([]request, depth)}
	all := make([]hca.SGE, depth*sges)
	for i := range q.ring {
		q.ring[i].sges = all[i*sges : i*sges : (i+1)*sges]
	}
	return q
}

func (q *workQueue) full() bool { return q.n == len(q.ring) }

// push copies a request in. There must be room, for its elements too.
func (q *workQueue) push(wr hca.SendWR, total uint64) {
	i := q.head + q.n
	if i >= len(q.ring) {
		i -= len(q.ring)
	}
	r := &q.ring[i]
	r.sges = r.sges[:0]
	if wr.SGE.Len != 0 {
		r.sges = append(r.sges, wr.SGE)
	}
	for _, s := range wr.More {
		if s.Len != 0 {
			r.sges = append(r.sges, s)
		}
	}
	wr.More = nil
	r.wr, r.total = wr, total
	q.n++
}

// first is the oldest request. There must be one.
func (q *workQueue) first() *request { return &q.ring[q.head] }

func (q *workQueue) pop() {
	if q.head++; q.head == len(q.ring) {
		q.head = 0
	}
	q.n--
}
