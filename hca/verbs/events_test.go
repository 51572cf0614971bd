//go:build linux && cgo && verbs

package verbs

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// heardOf is a log that passes on the kinds of events.
type heardOf chan string

func (h heardOf) Enabled(context.Context, slog.Level) bool { return true }
func (h heardOf) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h heardOf) WithGroup(string) slog.Handler            { return h }
func (h heardOf) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "kind" {
			h <- a.Value.String()
		}
		return true
	})
	return nil
}

// await waits for an event of that name.
func (h heardOf) await(t *testing.T, name string) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		select {
		case kind := <-h:
			if kind == name {
				return
			}
		case <-limit:
			t.Fatalf("no event %q", name)
		}
	}
}

// The adapter's port goes down and comes up again: the kernel says so, by name,
// to the log and in the counts, and what is connected afterwards works.
func TestPortEvents(t *testing.T) {
	heard := make(heardOf, 64)
	opened, err := Open(Config{Name: adapter(t), Log: slog.New(heard)})
	require.NoError(t, err)
	d := opened.(*device)
	t.Cleanup(func() { require.NoError(t, d.Close()) })

	link := dummyOf(t, d)
	link.set(t, false)
	up := false
	defer func() {
		if !up {
			link.set(t, true)
		}
	}()
	heard.await(t, "port error")
	link.set(t, true)
	up = true
	heard.await(t, "port active")

	counts := map[string]uint64{}
	for _, e := range d.Events() {
		counts[e.Name] = e.Count
	}
	require.NotZero(t, counts["port error"], "%v", counts)
	require.NotZero(t, counts["port active"], "%v", counts)
	t.Log(counts)
	works(t, d)
}

// dummy is a network device of the kind that nothing but a test goes through.
type dummy struct {
	name   string
	socket int
}

// dummyOf is the one under the adapter. Where the adapter lies on another kind,
// or this process may not change it, the test skips.
func dummyOf(t *testing.T, d *device) dummy {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/sys/class/infiniband", d.attr.Name, "parent"))
	if err != nil {
		t.Skipf("%s lies on no network device: %v", d.attr.Name, err)
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(s)) })
	link := dummy{strings.TrimSpace(string(text)), s}
	info, err := unix.IoctlGetEthtoolDrvinfo(s, link.name)
	require.NoError(t, err)
	if driver := unix.ByteSliceToString(info.Driver[:]); driver != "dummy" {
		t.Skipf("%s lies on %s, a network device of kind %q: others may need it", d.attr.Name, link.name, driver)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs leave to take a network device down")
	}
	return link
}

func (l dummy) set(t *testing.T, up bool) {
	t.Helper()
	r, err := unix.NewIfreq(l.name)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlIfreq(l.socket, unix.SIOCGIFFLAGS, r))
	flags := r.Uint16() &^ unix.IFF_UP
	if up {
		flags |= unix.IFF_UP
	}
	r.SetUint16(flags)
	require.NoError(t, unix.IoctlIfreq(l.socket, unix.SIOCSIFFLAGS, r))
}
