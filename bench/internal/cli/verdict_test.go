package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/bench/internal/stale"
	"example.com/holdfast/hca"
)

func TestVerdict(t *testing.T) {
	good := stale.Outcome{Transfers: 100, Hits: 50}
	bad := stale.Outcome{Transfers: 100, Wrong: 90, Hits: 99}
	for _, c := range []struct {
		name    string
		canShow bool
		off, on []stale.Outcome
		notRun  []error
		text    string
		err     string
	}{
		{name: "as it should be", canShow: true, off: []stale.Outcome{bad, bad}, on: []stale.Outcome{good, good},
			text: "With interception off 180 transfers were silently wrong, with it on none.\n"},
		{name: "wrong with interception", canShow: true, off: []stale.Outcome{bad}, on: []stale.Outcome{bad}, err: "90 transfers were wrong with interception on"},
		{name: "nothing kept", canShow: true, off: []stale.Outcome{bad}, on: []stale.Outcome{{Transfers: 100}}, err: "kept nothing"},
		{name: "nothing shown", canShow: true, off: []stale.Outcome{bad, good}, on: []stale.Outcome{good}, err: "1 loops went right"},
		{name: "no stale pages", on: []stale.Outcome{good}, text: "With interception on no transfer was wrong.\n"},
		{name: "wrong without stale pages", on: []stale.Outcome{bad}, err: "90 transfers"},
		{name: "no memory", canShow: true, notRun: []error{hca.ErrNoMemory}, text: "Not shown: " + hca.ErrNoMemory.Error() + "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := verdict{canShow: c.canShow, notRun: c.notRun}
			for _, o := range c.off {
				v.add(false, o)
			}
			for _, o := range c.on {
				v.add(true, o)
			}
			text, err := v.conclude()
			require.Equal(t, c.text, text)
			if c.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.err)
			}
		})
	}
}
