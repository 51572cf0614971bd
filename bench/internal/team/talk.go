package team

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"

	"example.com/holdfast/bench/internal/exchange"
	"example.com/holdfast/bench/internal/memory"
	"example.com/holdfast/bench/internal/pingpong"
	"example.com/holdfast/hca"
)

// order is what rank 0 tells rank 1 to do.
type order struct {
	Do      string
	Backend string      `json:",omitempty"` // doOpen
	Addr    hca.QPAddr  // doOpen: rank 0's queue pair
	Kind    memory.Kind `json:",omitempty"` // doPrepare
	Bytes   int         `json:",omitempty"` // doPrepare
	Seed    uint64      `json:",omitempty"` // doPlay
	Warm, N int         `json:",omitempty"` // doPlay
}

// The orders.
const (
	doOpen    = "open"    // make a pair and connect it
	doPrepare = "prepare" // buffers
	doPlay    = "play"
	doClose   = "close" // the pair
	doLeave   = "leave" // and end; there is no answer
)

// answer is what came of an order in one rank.
type answer struct {
	Failed *Error          `json:",omitempty"`
	Notes  [][2]string     `json:",omitempty"` // to nothing: what rank 1 says first
	Addr   hca.QPAddr      // to doOpen
	Sample pingpong.Sample // to doPlay
}

// Error is what failed in rank 1, in rank 0's process. What it is, of the
// kinds that make a difference here, errors.Is still tells.
type Error struct {
	Text string
	Kind string `json:",omitempty"` // of kinds
}

// kinds are the errors that are told apart in the other process.
var kinds = map[string]error{
	"cannot pin":    hca.ErrNoMemory,
	"cannot map":    syscall.ENOMEM,
	"not supported": hca.ErrNotSupported,
}

// failure is err as it travels; nil for nil.
func failure(err error) *Error {
	if err == nil {
		return nil
	}
	e := &Error{Text: err.Error()}
	for kind, is := range kinds {
		if errors.Is(err, is) {
			e.Kind = kind
		}
	}
	return e
}

// Error is the text of the other process, with the rank's number in front.
func (e *Error) Error() string { return "in rank 1's process: " + e.Text }

// Unwrap is the kind of error.
func (e *Error) Unwrap() error { return kinds[e.Kind] }

// err is e as an error; nil for nil.
func (e *Error) err() error {
	if e == nil {
		return nil
	}
	return e
}

// put and get carry values of Go through an exchange.
func put(ctx context.Context, x exchange.Exchange, key string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return x.Put(ctx, key, b)
}

func get[T any](ctx context.Context, x exchange.Exchange, rank int, key string) (v T, err error) {
	b, err := x.Get(ctx, rank, key)
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("%q of rank %d makes no sense: %w", key, rank, err)
	}
	return v, nil
}

// The keys.
const keyHere = "here" // of rank 1: its device is open, or why not

func keyDo(n int) string   { return fmt.Sprintf("do/%d", n) }   // of rank 0
func keyDid(n int) string  { return fmt.Sprintf("did/%d", n) }  // of rank 1
func keyMine(n int) string { return fmt.Sprintf("mine/%d", n) } // of rank 0: its own part of a game

// other is what the other rank's part of a game came to.
type other struct {
	answer answer
	err    error // it is gone, or did not say
}

// playBeside plays this rank's part of a game while it listens for what the
// other puts under key when it is done. An error of the other ends this rank's
// part. It returns when this part is done; heard gives the other's then, or
// later. stop ends the listening, with its cause.
func playBeside(ctx context.Context, x exchange.Exchange, rank int, key string, part func(context.Context) (pingpong.Sample, error)) (
	s pingpong.Sample, heard <-chan other, stop context.CancelCauseFunc, err error) {
	listening, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	playing, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	said := make(chan other, 1)
	go func() {
		a, err := get[answer](listening, x, rank, key)
		if e := errors.Join(err, a.Failed.err()); e != nil {
			fail(e)
		}
		said <- other{a, err}
	}()
	if s, err = part(playing); err != nil {
		// What ended this part may be an echo of what ended the other's.
		fail(err)
		err = context.Cause(playing)
	}
	return s, said, stop, err
}
