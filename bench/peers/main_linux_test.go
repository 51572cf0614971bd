package main

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/internal/childtest"
)

// Where userfaultfd is forbidden foreign memory is absent and says why; the
// other kinds are measured.
func TestWithoutUserfaultfd(t *testing.T) {
	childtest.Run(t, 30*time.Second, nil, func(t *testing.T) {
		childtest.Forbid(t, unix.SYS_USERFAULTFD)
		for _, kind := range kinds {
			var out bytes.Buffer
			j := job{regions: 16, threads: 1, iters: 100, churn: churnNone}
			require.NoError(t, runOurs(kind.name, j.args(), &out))
			if kind.name == "foreign" {
				require.Regexp(t, `^absent .*userfaultfd`, out.String())
			} else {
				require.Regexp(t, `(?m)^ns [\d.]+$`, out.String())
			}
		}
	})
}

// What is said of a job on each kind of memory is true: only unknown memory is
// registered again, and foreign churn is on the channel that was asked for.
func TestSites(t *testing.T) {
	childtest.Run(t, 60*time.Second, nil, func(t *testing.T) {
		for _, kind := range kinds {
			for _, ch := range []churn{churnNone, churnMix, churnSame, churnOther} {
				j := job{contend: ch != churnNone, regions: 16, threads: 1, iters: 100, churn: ch, limit: time.Second}
				if !doesOurs(kind.name)(j) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s", kind.name, ch), func(t *testing.T) {
					s, err := openSite(kind.name, j)
					if why, ok := err.(absentError); ok {
						t.Skip(why) // the machine forbids userfaultfd
					}
					require.NoError(t, err)
					defer func() { require.NoError(t, s.close()) }()
					require.NoError(t, s.fill(kind.name, j.regions))
					before := s.made.made.Load()
					require.NoError(t, s.fill(kind.name, j.regions))
					if again := s.made.made.Load() - before; kind.name == "unknown" {
						require.EqualValues(t, 16, again)
					} else {
						require.Zero(t, again)
					}
					require.Equal(t, ch != churnNone, s.churnOnce != nil)
					for range 100 {
						if s.churnOnce != nil {
							require.NoError(t, s.churnOnce())
						}
					}
					if kind.name != "unknown" {
						require.NoError(t, s.fill(kind.name, j.regions))
					}
				})
			}
		}
	})
}
