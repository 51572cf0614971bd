package team

import (
	"context"
	"time"

	"example.com/holdfast/bench/internal/memory"
	"example.com/holdfast/bench/internal/pingpong"
)

// Team is the two ranks.
type Team interface {
	// Notes say what runs, one line each, as rig.Rig.Lines does.
	Notes() [][2]string
	// Lacks says why the devices cannot do a backend, as rig.Rig.Lacks does.
	Lacks(backend string) error
	// Pair joins the ranks anew, with buffers registered as a backend does.
	// Errors: those of the backend and the devices of either rank, and that a
	// rank is gone.
	Pair(backend string) (Pair, error)
	// Close ends the team. Its error names a rank that did not end well.
	Close() error
}

// Pair is the two ranks, joined.
type Pair interface {
	// Name is what registers, for people.
	Name() string
	// Prepare gives each rank buffers of n bytes in place of those it had.
	// Errors: those of mapping, in either rank.
	Prepare(ctx context.Context, kind memory.Kind, n int) error
	// Play plays with these buffers, as pingpong.Game.Play.
	Play(ctx context.Context, warm, n int) (pingpong.Sample, error)
	// Close gives everything back, buffers included.
	Close() error
}

// The bounds of what has no context of its own. They are far beyond what any
// of it takes, on an emulated processor too.
const (
	// startTime is for a process to start, open its device, and say so.
	startTime = time.Minute
	// setupTime is for making or closing a pair.
	setupTime = time.Minute
	// partingTime is for a rank to be done after the other is, or has failed.
	partingTime = 30 * time.Second
	// idleTime is for rank 0 to say what is next. Its output may be going to
	// somebody who reads it page by page.
	idleTime = time.Hour
)
