//go:build !linux

package main

import (
	"errors"

	"example.com/holdfast/hca"
)

// openSite has held memory only: the other kinds are mapped by Linux's means.
func openSite(k kind, j job) (*site, error) {
	if k != held || j.churn != churnNone || j.sizes != sizesSame {
		return nil, absentError{&hca.OpError{Op: "map " + string(k) + " memory", Err: hca.ErrNotSupported, Hint: "Linux only"}}
	}
	c, n, err := newCache(nil)
	if err != nil {
		return nil, err
	}
	s := &site{kind: k, cache: c, made: n, mem: make([]byte, int(j.regions)*stride)}
	s.close = func() error { return errors.Join(c.Close()) }
	return s, nil
}
