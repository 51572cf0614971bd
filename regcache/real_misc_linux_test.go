package regcache_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
	"example.com/holdfast/internal/childtest"
)

// Making and closing monitors takes no memory away but their own: not even a
// page that was theirs a moment ago and is somebody else's now.
func TestReal_MonitorLeavesMemoryOfOthersAlone(t *testing.T) {
	childtest.Run(t, time.Minute, childEnv(), func(t *testing.T) {
		m, err := intercept.Userfault()
		if errors.Is(err, hca.ErrNotSupported) || errors.Is(err, hca.ErrAccess) {
			t.Skipf("no userfaultfd here: %v", err)
		}
		require.NoError(t, err)
		require.NoError(t, m.Close())
		var over atomic.Bool
		// Whoever asks the kernel for a page gets the one that became free last.
		user := func() error {
			for !over.Load() {
				var mine [4]hca.Range
				for i := range mine {
					g, err := raw{}.mmap(hca.Range{Len: page}, readWrite, unix.MAP_SHARED|unix.MAP_ANONYMOUS, -1)
					if err != nil {
						return err
					}
					mine[i] = g
				}
				for range 20 {
					for _, g := range mine {
						if err := raw.madvise(raw{}, g, unix.MADV_NORMAL); err != nil { // ENOMEM if nothing is mapped there
							return fmt.Errorf("%v was taken away: %w", g, err)
						}
					}
				}
				for _, g := range mine {
					if err := (raw{}).munmap(g); err != nil {
						return err
					}
				}
			}
			return nil
		}
		together(t, user, func() error {
			defer over.Store(true)
			for range rounds(200) {
				m, err := intercept.Userfault()
				if err != nil {
					return err
				}
				if err := m.Close(); err != nil {
					return err
				}
			}
			return nil
		})
		require.True(t, over.Load())
	})
}
