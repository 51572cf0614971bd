package bpf

import (
	"errors"
	"fmt"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
)

// Config says how to watch. The zero value is sensible.
type Config struct {
	// Ring is how many events are kept for feeds that are slow to read, a
	// power of two from 64 to 1<<20, 32 bytes each. A feed that falls behind
	// by more is told that anything may have changed. 0: 16384.
	Ring int
}

func (c Config) withDefaults() Config {
	if c.Ring == 0 {
		c.Ring = 16384
	}
	return c
}

func (c Config) validate() error {
	if c.Ring < 64 || c.Ring > 1<<20 || c.Ring&(c.Ring-1) != 0 {
		return startError(fmt.Sprintf("Ring is %d, not a power of two from 64 to %d", c.Ring, 1<<20), hca.ErrInvalid, "")
	}
	return nil
}

// Auto makes the best monitor that works here: programs in the kernel, else
// userfaultfd, else explicit calls. Monitor.Lesser tells why it is not the
// better one, and Monitor.String says so too.
func Auto() (*intercept.Monitor, error) {
	m, why := New(Config{})
	if why == nil {
		return m, nil
	}
	m, err := intercept.Auto()
	if err != nil {
		return nil, errors.Join(why, err)
	}
	m.SetLesser(errors.Join(why, m.Lesser()))
	return m, nil
}

func startError(detail string, kind error, hint string) error {
	return &hca.OpError{Op: "start bpf monitor", Detail: detail, Err: kind, Hint: hint}
}
