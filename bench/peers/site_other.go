//go:build !linux

package main

import (
	"errors"

	"example.com/holdfast/hca"
)

// openSite has held memory only: the other kinds are mapped by Linux's means.
func openSite(kind string, j job) (*site, error) {
	if kind != "held" || j.churn != churnNone {
		return nil, absentError{&hca.OpError{Op: "map " + kind + " memory", Err: hca.ErrNotSupported, Hint: "Linux only"}}
	}
	c, n, err := newCache(nil)
	if err != nil {
		return nil, err
	}
	s := &site{cache: c, made: n, mem: make([]byte, int(j.regions)*stride)}
	s.close = func() error { return errors.Join(c.Close()) }
	return s, nil
}
