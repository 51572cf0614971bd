package regcache

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// BrokenModelTest is the source of a Go test that fails: random programs were
// run on a cache that believes the counter alone, until one failed, and that one
// was made shorter. In the second the same program is run on a whole cache,
// where it must not fail.
func BrokenModelTest(t *testing.T, name, whole string) (broken, sound string) {
	t.Helper()
	var failed *modelProgram
	var why error
	defer NoShrinking()()
	for n := 0; n < 20 && failed == nil; n++ {
		rapid.Check(t, func(t *rapid.T) {
			p := drawModelProgram(t)
			p.omit = omitProbe
			for i, s := range p.steps { // a View leaves the whole of its check out
				switch s.kind {
				case stView:
					p.steps[i].kind = stGet
				case stViewBytes:
					p.steps[i].kind = stGetBytes
				}
			}
			if failed != nil {
				return
			}
			if _, err := p.run(); err != nil {
				failed, why = &p, err
			}
		})
	}
	require.NotNil(t, failed, "no program shows that the probe was left out")
	broken = failed.shrink(why, name)
	sound = strings.ReplaceAll(broken, name, whole)
	sound = strings.Replace(sound, "omit: 4", "omit: 0", 1)
	require.NotEqual(t, strings.ReplaceAll(broken, name, whole), sound)
	return broken, sound
}

// A program that fails because the probe is left out comes down to the few steps
// that need it: something is got, an event is under way, and it is got again.
func TestModelShrinks(t *testing.T) {
	broken, _ := BrokenModelTest(t, "TestModelFound", "TestModelWhole")
	t.Log(broken)
	_, steps, ok := strings.Cut(broken, "steps: ")
	require.True(t, ok)
	require.Contains(t, steps, "stUnderWay")
	require.LessOrEqual(t, strings.Count(steps, "{st"), 4)
}
