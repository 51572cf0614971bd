package main

import (
	"bytes"
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
		for _, o := range ours {
			var out bytes.Buffer
			j := filled([]job{{regions: 8, threads: 1}}, modeHit, 100)[0]
			require.NoError(t, runOurs(nameOf(o.kind, o.way), j.args(), &out))
			if o.kind == foreign {
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
		for _, k := range []kind{held, owned, foreign, unknown} {
			for _, j := range []job{
				{mode: modeHit},
				{mode: modeHit, sizes: sizesMixed},
				{mode: modeHit, sizes: sizesInside},
				{mode: modeMiss},
				{mode: modeEnd},
				{mode: modeContend, churn: churnMix},
				{mode: modeContend, churn: churnSame},
				{mode: modeContend, churn: churnOther},
			} {
				j.regions, j.threads = 20, 1
				j = filled([]job{j}, "", 100)[0]
				if !doesOurs(k, wayGet)(j) {
					continue
				}
				t.Run(string(k)+"/"+j.name(), func(t *testing.T) {
					s, err := openSite(k, j)
					if why, ok := err.(absentError); ok {
						t.Skip(why) // the machine forbids userfaultfd
					}
					require.NoError(t, err)
					defer func() { require.NoError(t, s.close()) }()
					require.NoError(t, s.fill(j.regions))
					before := s.made.made.Load()
					require.NoError(t, s.fill(j.regions))
					run, end, err := s.runner(wayGet, j.regions, 0)
					if j.sizes != sizesSame {
						require.NoError(t, err)
						_, err = run(1, 1000)
						require.NoError(t, err)
						require.NoError(t, end())
					}
					if again := s.made.made.Load() - before; k == unknown {
						require.Positive(t, again)
					} else {
						require.Zero(t, again)
					}
					require.Equal(t, j.churn != churnNone, s.churnOnce != nil)
					for range 100 {
						if s.churnOnce != nil {
							require.NoError(t, s.churnOnce())
						}
					}
					if k != unknown {
						require.NoError(t, s.fill(j.regions))
					}
				})
			}
		}
	})
}
