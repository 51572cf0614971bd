package odpbackend

import (
	"sync"

	"example.com/holdfast/hca"
)

// shared is one registration on the device and how many have it. It is made
// by the goroutine that put it into the table; who finds it there waits for
// ready.
type shared struct {
	key   uint64        // where it stands in table.byKey, unless it is own
	own   bool          // made for one range alone
	ready chan struct{} // closed when mr and err are set; nil if own
	mr    *hca.MR       // guarded by table.mu until ready; nil: not there yet, or err
	err   error         // as mr
	refs  int           // guarded by table.mu
}

// table holds the registrations that are out. byKey has the shared ones, by
// number of window (the whole address space is number 0); byMR has all that
// the device made.
type table struct {
	mu struct {
		sync.Mutex
		byKey map[uint64]*shared
		byMR  map[*hca.MR]*shared
	}
}

func (t *table) init() {
	t.mu.byKey = make(map[uint64]*shared)
	t.mu.byMR = make(map[*hca.MR]*shared)
}

// share answers with the shared registration of that key, and makes it with
// register if there is none. Callers that come while it is being made wait and
// get the same, or the same error; nothing is left behind of one that failed.
func (t *table) share(key uint64, register func() (*hca.MR, error)) (*hca.MR, error) {
	t.mu.Lock()
	if s := t.mu.byKey[key]; s != nil {
		s.refs++
		t.mu.Unlock()
		<-s.ready
		return s.mr, s.err
	}
	s := &shared{key: key, ready: make(chan struct{}), refs: 1}
	t.mu.byKey[key] = s
	t.mu.Unlock()

	mr, err := register()
	t.mu.Lock()
	if err != nil {
		delete(t.mu.byKey, key)
	} else {
		t.mu.byMR[mr] = s
	}
	s.mr, s.err = mr, err
	t.mu.Unlock()
	close(s.ready)
	return mr, err
}

// add notes a registration that one caller has for itself.
func (t *table) add(mr *hca.MR) {
	s := &shared{own: true, mr: mr, refs: 1}
	t.mu.Lock()
	t.mu.byMR[mr] = s
	t.mu.Unlock()
}

// hold takes one reference more on a registration that is out and covers r,
// so that it stays while it is used; nil if there is none. It looks at the
// shared one of that key first, if there is such a key, and then at all
// others, one by one.
func (t *table) hold(key uint64, keyed bool, r hca.Range) *hca.MR {
	t.mu.Lock()
	defer t.mu.Unlock()
	if keyed {
		if s := t.mu.byKey[key]; s != nil && s.mr != nil && s.mr.Range.Contains(r) {
			s.refs++
			return s.mr
		}
	}
	for mr, s := range t.mu.byMR {
		if s.own && mr.Range.Contains(r) {
			s.refs++
			return mr
		}
	}
	return nil
}

// drop gives one reference back. last is true for the last one: the caller
// then takes the registration from the device. known is false for a
// registration that is not in the table.
func (t *table) drop(mr *hca.MR) (last, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.mu.byMR[mr]
	if s == nil {
		return false, false
	}
	s.refs--
	if s.refs > 0 {
		return false, true
	}
	delete(t.mu.byMR, mr)
	if !s.own {
		delete(t.mu.byKey, s.key)
	}
	return true, true
}
