package stale

import (
	"context"
	"errors"
	"io/fs"
	"runtime"
	"runtime/debug"
	"sync"

	"example.com/holdfast/bench/internal/memory"
)

// size is the length of the buffers: large enough that the Go runtime gives
// each a place of its own on its heap (over 32 KiB), a multiple of the page.
const size = 64 << 10

// Case is one way in which memory goes away between two transfers.
type Case struct {
	Name   string // short, for the table
	Text   string // what happens, in a sentence
	Rounds int    // by default
	run    func(ctx context.Context, s *stage, rounds int) (transfers int, err error)
}

// Cases are all of them, in the order in which they are shown.
func Cases() []Case {
	return []Case{
		{"mapped memory", "munmap, and mmap at the same address again", 500, mapped},
		{"Go heap", "dropped, given back to the kernel by the scavenger, and allocated again", 40, goHeap},
		{"another thread", "munmap, and another thread maps memory at the address as soon as it is free", 500, takenOver},
	}
}

// mapped maps, uses and unmaps memory at one address.
func mapped(_ context.Context, s *stage, rounds int) (transfers int, err error) {
	l, err := s.link()
	if err != nil {
		return 0, err
	}
	place, err := memory.FarPlace(s.mapper, size)
	if err != nil {
		return 0, err
	}
	for range rounds {
		if err := s.mapper.MapAt(place); err != nil {
			return transfers, err
		}
		if err := l.round(place); err != nil {
			return transfers, errors.Join(err, s.mapper.Unmap(place))
		}
		transfers += perRound
		if err := s.mapper.Unmap(place); err != nil {
			return transfers, err
		}
	}
	return transfers, nil
}

// heapBuffers is how many buffers are in use together in one round of goHeap.
const heapBuffers = 8

// goHeap allocates buffers, uses them, and drops them all at once. Then the
// runtime is asked to give what is free back to the kernel, as its scavenger
// does by itself in the course of time.
func goHeap(_ context.Context, s *stage, rounds int) (transfers int, err error) {
	l, err := s.link()
	if err != nil {
		return 0, err
	}
	for range rounds {
		bufs := make([][]byte, heapBuffers)
		for i := range bufs {
			bufs[i] = make([]byte, size)
			if err := l.round(bufs[i]); err != nil {
				return transfers, err
			}
			transfers += perRound
		}
		runtime.KeepAlive(bufs)
		debug.FreeOSMemory()
	}
	return transfers, nil
}

// takenOver has two threads that map memory at one address, each as soon as
// the other has unmapped it, use it and unmap it.
func takenOver(ctx context.Context, s *stage, rounds int) (transfers int, err error) {
	place, err := memory.FarPlace(s.mapper, size)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		threads sync.WaitGroup
		count   [2]int
		errs    [2]error
	)
	for i := range 2 {
		l, err := s.link()
		if err != nil {
			cancel(err)
			threads.Wait()
			return 0, err
		}
		threads.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for range rounds {
				if errs[i] = takeRound(ctx, s.mapper, l, place); errs[i] != nil {
					cancel(errs[i])
					return
				}
				count[i] += perRound
			}
		})
	}
	threads.Wait()
	if errs[0] != nil || errs[1] != nil {
		return count[0] + count[1], context.Cause(ctx)
	}
	return count[0] + count[1], nil
}

// takeRound waits until place is free, and uses it for a round.
func takeRound(ctx context.Context, m memory.Mapper, l *link, place []byte) error {
	for {
		err := m.MapAt(place)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		runtime.Gosched()
	}
	return errors.Join(l.round(place), m.Unmap(place))
}
