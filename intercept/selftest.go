package intercept

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"example.com/holdfast/hca"
)

// patience is how long an event may take from the return of the system call
// that caused it until it is counted. It takes microseconds; a second means
// that it does not come.
const patience = time.Second

// selfTest sees with its own eyes that every source delivers.
func (m *Monitor) selfTest() error {
	c := m.newCursor()
	r, err := m.exerciseOwned()
	if err != nil {
		return err
	}
	if err := m.expectAny(&c, r); err != nil {
		return &hca.OpError{Op: "start monitor", Detail: "self-test of explicit calls", Range: r, Err: err}
	}
	if m.kernel == nil {
		return nil
	}
	// Other sources than userfaultfd have tests of their own: Assemble.
	for i := range m.kernel.fds {
		if err := m.tryDescriptor(i); err != nil {
			return err
		}
	}
	return nil
}

// expect drains the cursor until all that was counted at the call is out, and
// looks for an event of the given cause that touches r.
func (m *Monitor) expect(c *cursor, r hca.Range, cause hca.Cause) error {
	return m.look(c, func(ev hca.Event) bool { return ev.Cause == cause && ev.Range.Overlaps(r) },
		fmt.Sprintf("no %v event arrived", cause))
}

func (m *Monitor) expectAny(c *cursor, r hca.Range) error {
	return m.look(c, func(ev hca.Event) bool { return ev.Range.Overlaps(r) }, "no event arrived")
}

func (m *Monitor) look(c *cursor, is func(hca.Event) bool, missing string) error {
	for began := time.Now(); m.counter.Load()&hca.Unsettled != 0; runtime.Gosched() {
		if time.Since(began) > 10*patience { // on a starved machine it is others' turn for long
			return fmt.Errorf("the counter did not settle: %w", hca.ErrNotSupported)
		}
	}
	var buf [16]hca.Event
	found := false
	for n := c.next(buf[:]); n > 0; n = c.next(buf[:]) {
		for _, ev := range buf[:n] {
			found = found || is(ev)
		}
	}
	if !found {
		return fmt.Errorf("%s: %w", missing, hca.ErrNotSupported)
	}
	return nil
}

// Exercise causes an event on memory of its own and returns the range, which
// is gone then. With a kernel source it is a raw munmap of watched memory, as
// by somebody who knows nothing of the monitor; without one it is the
// monitor's own call. The event has been taken by then, and is counted when
// the counter is settled next.
func (m *Monitor) Exercise() (hca.Range, error) {
	if m.closed.Load() {
		return hca.Range{}, &hca.OpError{Op: "exercise monitor", Err: hca.ErrClosed}
	}
	if m.source == nil {
		return m.exerciseOwned()
	}
	return m.exerciseForeign()
}

var errNotWatched = errors.New("a page of the monitor's own cannot be watched")
