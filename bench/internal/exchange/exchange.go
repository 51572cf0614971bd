package exchange

import (
	"context"
	"errors"
	"fmt"
)

// Exchange is what a rank needs of whoever started it. All methods may be
// called by any number of goroutines at once.
type Exchange interface {
	// Rank is this rank's number, from 0 on.
	Rank() int
	// Size is how many ranks there are.
	Size() int
	// Put makes value known to all ranks under key, once and for good. It
	// returns when it is known, and does not keep value. Errors: ErrRefused
	// for a key that this rank has put before, or that is empty or longer than
	// MaxKey, or a value longer than MaxValue; ErrGone; the context's.
	Put(ctx context.Context, key string, value []byte) error
	// Get gives what rank has put under key, and waits for it. Errors: a
	// *LostError if that rank is gone and never put it; ErrRefused where there
	// is no such rank; ErrGone; and the context's cause, with the rank and the
	// key in the text.
	Get(ctx context.Context, rank int, key string) ([]byte, error)
}

// What a key and a value may have at most, in bytes.
const (
	MaxKey   = 256
	MaxValue = 64 << 10
)

// ErrRefused is why a request or a rank was not accepted; what stands around it
// says more.
var ErrRefused = errors.New("refused")

// ErrGone is that the exchange itself is gone: the process that serves it, or
// the connection to it.
var ErrGone = errors.New("the exchange is gone")

// LostError is that a rank is gone.
type LostError struct {
	Rank   int
	Reason string // "its connection ended"
}

// Error names the rank and the reason.
func (e *LostError) Error() string { return fmt.Sprintf("rank %d is gone: %s", e.Rank, e.Reason) }
