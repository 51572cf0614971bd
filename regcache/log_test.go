package regcache

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

// textLog is a logger that writes lines without times into a buffer.
func textLog(w *bytes.Buffer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "age" {
				return slog.Attr{}
			}
			return a
		}}))
}

// The log of a life: each thing that happens to a Region is one line, in order.
func TestLogTellsWhatHappened(t *testing.T) {
	var out bytes.Buffer
	c, _, m := rig(t, hca.MemOwned, Config{SweepEvery: -1, MaxRegions: 2, MaxBytes: 8 * pg, Logger: textLog(&out, slog.LevelDebug)})
	mustGet(t, c, at(0, 1), hca.LocalWrite).Release()
	mustGet(t, c, at(0, 1), hca.LocalWrite).Release()
	mustGet(t, c, at(2, 1), 0).Release()
	mustGet(t, c, at(2, 1), 0).Release()
	mustGet(t, c, at(4, 1), 0).Release() // evicts the first: both were hit
	mustGet(t, c, at(40, 9), 0).Release()
	m.event(at(2, 1))
	quiet(t, c)
	mustGet(t, c, at(4, 3), 0).Release() // replaces the one inside it
	quiet(t, c)
	require.Zero(t, c.Invalidate(at(4, 1)))
	mustGet(t, c, at(6, 1), 0).Release()
	require.NoError(t, c.Close())

	got := strings.ReplaceAll(out.String(), "level=DEBUG msg=", "")
	got = regexp.MustCompile(`range="\[0x7f0000([0-9a-f]+),0x[0-9a-f]+\) ([^"]*)"`).ReplaceAllString(got, "$1+$2")
	require.Equal(t, strings.TrimLeft(`
registered 000000+4096 B access=LocalWrite lkey=1
registered 002000+4096 B access=LocalRead lkey=2
deregistered 000000+4096 B why=evicted hits=1
registered 004000+4096 B access=LocalRead lkey=3
registered 028000+36864 B access=LocalRead lkey=4
"used once" 028000+36864 B why="no room within the limits"
deregistered 028000+36864 B why="used once" hits=0
"memory went away" 002000+4096 B cause=unmap event="[0x7f0000002000,0x7f0000003000) 4096 B"
deregistered 002000+4096 B why="its memory went away" hits=1
registered 004000+12288 B access=LocalRead lkey=5
deregistered 004000+4096 B why="replaced by a better one" hits=0
"invalidated by its owner" 004000+12288 B
deregistered 004000+12288 B why="its owner invalidated it" hits=0
registered 006000+4096 B access=LocalRead lkey=6
deregistered 006000+4096 B why="the cache was closed" hits=0
`, "\n"), normal(got))
}

// normal undoes the units of hca.Bytes, which the test above has no use for.
func normal(s string) string {
	for units, bytes := range map[string]string{"4 KiB": "4096 B", "36 KiB": "36864 B", "12 KiB": "12288 B"} {
		s = strings.ReplaceAll(s, units, bytes)
	}
	return s
}

// At any level above debug nothing is made, and a hit allocates nothing at any.
func TestLogCostsNothing(t *testing.T) {
	var out bytes.Buffer
	for _, l := range []*slog.Logger{nil, textLog(&out, slog.LevelInfo), textLog(&out, slog.LevelDebug)} {
		c, _, _ := rig(t, hca.MemOwned, Config{Logger: l})
		mustGet(t, c, at(0, 1), 0).Release()
		if !debugging { // traced references allocate
			require.Zero(t, testing.AllocsPerRun(100, func() { mustGet(t, c, at(0, 1), 0).Release() }))
		}
		require.NoError(t, c.Close())
		if l == nil || !l.Enabled(context.Background(), slog.LevelDebug) {
			require.Empty(t, out.String())
			require.Empty(t, c.log.lines)
		}
	}
	require.NotEmpty(t, out.String())
}

// handler is a log handler that a test writes.
type handler struct {
	slog.Handler
	f func(slog.Record) error
}

func (h handler) Enabled(context.Context, slog.Level) bool      { return true }
func (h handler) Handle(_ context.Context, r slog.Record) error { return h.f(r) }

// A handler may call the cache, and block: it harms nobody.
func TestLogHandlerMayDoAnything(t *testing.T) {
	var c *Cache
	ready, release := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	lines, nested := map[string]int{}, 0
	h := handler{f: func(r slog.Record) error {
		<-ready
		<-release
		mu.Lock()
		lines[r.Message]++
		deep := nested < 3
		nested++
		mu.Unlock()
		if deep {
			c.Stats()
			c.Snapshot()
			r, err := c.Get(at(1<<20, 1), 0)
			if err == nil {
				r.Release()
			}
			return err
		}
		return errors.New("nobody hears this")
	}}
	c, b, m := rig(t, hca.MemOwned, Config{MaxRegions: 4 * maxLines, Logger: slog.New(h)})
	close(ready)
	goOn := sync.OnceFunc(func() { close(release) })
	t.Cleanup(goOn)
	b.onDeregister = func(*hca.MR) error { return errors.New("stuck") }
	// The writer may have taken a first batch of up to maxLines by now, and is stuck.
	for i := range uint64(2*maxLines + 1000) {
		mustGet(t, c, at(i*2, 1), 0).Release()
	}
	m.event(at(0, 1))
	quiet(t, c)
	b.onDeregister = nil
	require.EqualValues(t, 1, c.Stats().DeregisterErrors)
	c.mu.Lock()
	waiting, dropped := len(c.log.lines), c.log.dropped
	c.mu.Unlock()
	goOn()
	require.LessOrEqual(t, waiting, maxLines, "what waits is bounded")
	require.Positive(t, dropped)
	require.ErrorContains(t, c.Close(), "stuck")
	mu.Lock()
	defer mu.Unlock()
	require.Positive(t, lines["registered"])
	require.Positive(t, lines["the log was too slow: lines are missing"], "once for each time that it fell behind")
	b.live = nil // the one that would not go
}

// An error is told at once and outside the lock, in order with the rest.
func TestLogTellsErrors(t *testing.T) {
	var out bytes.Buffer
	c, b, m := rig(t, hca.MemOwned, Config{Logger: textLog(&out, slog.LevelError)})
	b.onDeregister = func(*hca.MR) error { return hca.ErrBusy }
	mustGet(t, c, at(0, 1), 0).Release()
	m.event(at(0, 1))
	quiet(t, c)
	require.ErrorIs(t, c.Close(), hca.ErrBusy)
	require.Equal(t, 1, strings.Count(out.String(), "\n"))
	require.Contains(t, out.String(), `level=ERROR msg="deregistration failed" range="[0x7f0000000000,0x7f0000001000) 4 KiB" backend=nop err=busy`)
	b.live = nil
}

// A handler may close the cache that calls it. What is left to write then is
// written after it has returned.
func TestLogHandlerMayClose(t *testing.T) {
	var c *Cache
	ready, closed := make(chan struct{}), make(chan error, 1)
	var lines []string
	h := handler{f: func(r slog.Record) error {
		lines = append(lines, r.Message)
		if len(lines) == 1 {
			<-ready
			closed <- c.Close()
		}
		return nil
	}}
	c, _, _ = rig(t, hca.MemOwned, Config{Logger: slog.New(h)})
	mustGet(t, c, at(0, 1), 0).Release()
	close(ready)
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(10 * time.Second):
		t.Fatal("Close waits for the handler that called it")
	}
	c.log.writer.Wait()
	require.Equal(t, []string{"registered", "deregistered"}, lines)
	require.ErrorIs(t, c.Close(), hca.ErrClosed)
}
