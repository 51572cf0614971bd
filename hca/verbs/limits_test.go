//go:build linux && cgo && verbs

package verbs

import (
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/hca/hcatest"
	"example.com/holdfast/internal/childtest"
)

// pinned is VmPin of this process, bytes.
func pinned(t *testing.T) uint64 {
	t.Helper()
	self, err := procfs.Self()
	require.NoError(t, err)
	status, err := self.NewStatus()
	require.NoError(t, err)
	return status.VmPin
}

// The kernel counts pinned pages for each registration, whole pages, and
// overlapping ones twice; on-demand ones not at all.
func TestPins(t *testing.T) {
	childtest.Run(t, 30*time.Second, nil, func(t *testing.T) {
		d := open(t)
		start := pinned(t)
		m := hcatest.Map(t, 64*page)
		one := hcatest.Register(t, d, m, everything)
		require.Equal(t, start+64*page, pinned(t))
		two := hcatest.Register(t, d, m[page-1:page+1], everything) // two bytes, two pages
		require.Equal(t, start+66*page, pinned(t))
		require.EqualValues(t, 66*page, d.Counters().PinnedNow, "our own count says the same")
		if d.attr.ODP.Support {
			hcatest.Register(t, d, m, everything|hca.OnDemand)
			require.Equal(t, start+66*page, pinned(t))
		}
		require.NoError(t, d.Deregister(one))
		require.Equal(t, start+2*page, pinned(t))
		require.NoError(t, d.Deregister(two))
		require.Equal(t, start, pinned(t))
		require.Zero(t, d.Counters().PinnedNow)
	})
}

// Without privilege RLIMIT_MEMLOCK bounds what is pinned, and the error says
// so; on-demand registrations are not bound by it.
func TestMemlock(t *testing.T) {
	adapter(t)
	childtest.Run(t, 30*time.Second, nil, func(t *testing.T) {
		runtime.LockOSThread() // see docs/verbs.md, "Changing the user"
		childtest.DropPrivileges(t, 7301, 64*page)
		d := open(t)
		m := hcatest.Map(t, 64*page)
		one := hcatest.Register(t, d, m[:32*page], everything)
		two := hcatest.Register(t, d, m[:32*page], everything) // the same pages count again
		_, err := d.Register(hca.RangeOf(m[:1]), everything)
		require.ErrorIs(t, err, hca.ErrNoMemory)
		require.ErrorContains(t, err, "256 KiB pinned by this device, memlock limit 256 KiB")
		require.ErrorContains(t, err, "ulimit -l")
		require.ErrorContains(t, err, "ibv_reg_mr: ENOMEM")
		if d.attr.ODP.Support {
			hcatest.Register(t, d, m, everything|hca.OnDemand)
		}
		require.NoError(t, d.Deregister(one))
		require.NoError(t, d.Deregister(two))
		hcatest.Register(t, d, m, everything) // all of it again
	})
}

// A limit of zero is answered by another errno, and means the same.
func TestNoMemlock(t *testing.T) {
	adapter(t)
	childtest.Run(t, 30*time.Second, nil, func(t *testing.T) {
		runtime.LockOSThread()
		childtest.DropPrivileges(t, 7302, 0)
		d := open(t)
		_, err := d.Register(hca.RangeOf(hcatest.Map(t, page)), everything)
		require.ErrorIs(t, err, hca.ErrNoMemory)
		require.ErrorContains(t, err, "memlock limit 0 B")
		require.Zero(t, d.Counters().PinnedNow)
	})
}
