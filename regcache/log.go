package regcache

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"time"

	"example.com/holdfast/hca"
)

// The log says what became of Regions, at debug level, and what went wrong
// where no caller could be told, at error level. Nothing of it is on the path of
// a hit, and at any other level nothing of it costs more than the look at a
// bool.
//
// What happens, happens under Cache.mu, and a log handler may block, write to a
// disk, or call the cache. So a line is made under the lock, with the time of
// the moment, and written by a goroutine of its own that holds nothing. It
// writes in the order in which things happened. It has no more than maxLines to
// write: if more come while the handler is slow they are dropped, and their
// number is told. A handler that blocks for ever keeps Close from ending and
// nothing else. One that calls Close is not waited for: see inLogHandler.
type journal struct {
	handler slog.Handler
	debug   bool // the handler wants lines at debug level
	wake    chan struct{}
	writer  sync.WaitGroup // the goroutine that writes

	lines   []slog.Record // guarded by Cache.mu
	dropped int           // guarded by Cache.mu: since the last line was taken
}

const maxLines = 4096

// end is why a Region left look-up.
type end uint8

const (
	endGivenUp  end = iota // by nobody in particular
	endInvalid             // its memory went away
	endOwner               // its owner called Invalidate
	endEvicted             // for a limit, for its idle age, by Trim or Flush, or because the backend ran out
	endSwept               // the sweep found it over memory that is not mapped
	endReplaced            // a better one does all it did
	endRedone              // an event touched it before it could be published
	endOnce                // it never was in look-up
	endClosed              // the cache was closed
)

// memoryGone reports whether a Region left because of its memory, and not only
// because its registration was given up.
func (e end) memoryGone() bool { return e == endInvalid || e == endOwner }

// String says the reason, for people.
func (e end) String() string {
	switch e {
	case endInvalid:
		return "its memory went away"
	case endOwner:
		return "its owner invalidated it"
	case endSwept:
		return "not mapped any more"
	case endEvicted:
		return "evicted"
	case endReplaced:
		return "replaced by a better one"
	case endRedone:
		return "touched before it could be kept"
	case endOnce:
		return "used once"
	case endClosed:
		return "the cache was closed"
	}
	return "given up"
}

// startJournal begins to write the log, if anybody wants to read it.
func (c *Cache) startJournal() {
	l := c.cfg.Logger
	if !l.Enabled(context.Background(), slog.LevelError) {
		return
	}
	c.log.handler = l.Handler()
	c.log.debug = l.Enabled(context.Background(), slog.LevelDebug)
	c.log.wake = make(chan struct{}, 1)
	c.log.writer.Add(1)
	go c.writeJournal()
}

// inLogHandler reports whether the caller runs inside a log handler of a cache,
// called by the goroutine that writes its log: which would wait for itself.
func inLogHandler() bool {
	stack := make([]uintptr, 64)
	n := runtime.Callers(2, stack)
	for n == len(stack) {
		stack = make([]uintptr, 2*len(stack))
		n = runtime.Callers(2, stack)
	}
	for frames := runtime.CallersFrames(stack[:n]); ; {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, "regcache.(*Cache).writeJournal") {
			return true
		}
		if !more {
			return false
		}
	}
}

// noteLocked adds a line about a Region, or about a range that has none yet.
// Callers look at c.log.debug first, so that nothing is made for nobody.
// Cache.mu is held.
func (c *Cache) noteLocked(what string, g hca.Range, attrs ...slog.Attr) {
	c.lineLocked(slog.LevelDebug, what, append([]slog.Attr{slog.String("range", g.String())}, attrs...))
}

// noteRegisteredLocked adds the line about a registration that was made.
// Cache.mu is held.
func (c *Cache) noteRegisteredLocked(mr *hca.MR) {
	c.noteLocked("registered", mr.Range, slog.String("access", mr.Access.String()), slog.Uint64("lkey", uint64(mr.LKey)))
}

// noteGoneLocked adds the line about a registration that is no more. Cache.mu is
// held.
func (c *Cache) noteGoneLocked(r *Region) {
	c.noteLocked("deregistered", r.Range(), slog.String("why", r.cold.end.String()),
		slog.Uint64("hits", r.cold.hits), slog.Duration("age", r.cold.born.since(c.clock())))
}

// noteErrorLocked adds a line about something that failed. Cache.mu is held.
func (c *Cache) noteErrorLocked(what string, g hca.Range, err error) {
	if c.log.handler != nil {
		c.lineLocked(slog.LevelError, what, []slog.Attr{slog.String("range", g.String()), slog.String("backend", c.info.Name), slog.Any("err", err)})
	}
}

func (c *Cache) lineLocked(level slog.Level, what string, attrs []slog.Attr) {
	if len(c.log.lines) >= maxLines {
		c.log.dropped++
		return
	}
	line := slog.NewRecord(time.Now(), level, what, 0)
	line.AddAttrs(attrs...)
	c.log.lines = append(c.log.lines, line)
	select {
	case c.log.wake <- struct{}{}:
	default:
	}
}

func (c *Cache) writeJournal() {
	defer c.log.writer.Done()
	for stopped := false; !stopped; {
		select {
		case <-c.log.wake:
		case <-c.stop:
			stopped = true
		}
		c.mu.Lock()
		lines, dropped := c.log.lines, c.log.dropped
		c.log.lines, c.log.dropped = nil, 0
		c.mu.Unlock()
		if dropped > 0 {
			late := slog.NewRecord(time.Now(), slog.LevelWarn, "the log was too slow: lines are missing", 0)
			late.AddAttrs(slog.Int("lines", dropped))
			lines = append(lines, late)
		}
		for _, line := range lines {
			if c.log.handler.Enabled(context.Background(), line.Level) {
				// A log that cannot be written has nobody to tell.
				_ = c.log.handler.Handle(context.Background(), line)
			}
		}
	}
}
