package regcache

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/internal/childtest"
)

// A sweep that cannot read the mappings says so in the log, like everything:
// without waiting for the handler, which may sweep itself.
func TestSweepDoesNotWaitForTheLog(t *testing.T) {
	childtest.Run(t, 30*time.Second, []string{"GORACE=atexit_sleep_ms=0"}, func(t *testing.T) {
		var c *Cache
		ready, again, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
		said := 0
		h := handler{f: func(r slog.Record) error {
			<-ready
			if r.Message == "sweep: cannot read the mappings" {
				if said++; said == 1 {
					c.Sweep()
					if said != 1 {
						t.Error("the handler was called by Sweep")
					}
					close(again)
					<-release
				}
			}
			return nil
		}}
		c, _, _ = rig(t, hca.MemForeign, Config{SweepEvery: -1, Logger: slog.New(h)})
		close(ready)
		mustGet(t, c, hca.Range{Addr: 0x10000, Len: pg}, 0).Release() // mapped nowhere
		var old unix.Rlimit
		require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: old.Max})) // no file can be opened
		require.Zero(t, c.Sweep())
		<-again // the handler stands still from here on
		require.Zero(t, c.Sweep())
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
		require.Equal(t, 1, c.Sweep())
		require.EqualValues(t, 4, c.Stats().Sweeps)
		close(release)
		require.NoError(t, c.Close())
		require.Equal(t, 3, said, "each that failed is told")
	})
}
