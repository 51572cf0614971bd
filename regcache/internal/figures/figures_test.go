package figures

import (
	"reflect"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/regcache"
)

// Every number of Stats has one Figure, and each Figure is one number of Stats.
func TestEveryNumberOfStats(t *testing.T) {
	var s regcache.Stats
	v := reflect.ValueOf(&s).Elem()
	fields := map[uint64]string{}
	for i := range v.NumField() {
		n := uint64(1000 + i)
		switch f := v.Field(i); f.Kind() {
		case reflect.Uint64:
			f.SetUint(n)
		case reflect.Int:
			f.SetInt(int64(n))
		case reflect.String, reflect.Array:
			continue // names, and UsedOnce
		default:
			require.Fail(t, "what is this?", "regcache.Stats.%s", v.Type().Field(i).Name)
		}
		fields[n] = v.Type().Field(i).Name
	}
	names := map[string]bool{}
	for _, f := range All() {
		n := f.Value(&s)
		require.Contains(t, fields, n, "%s is no number of Stats, or one that another Figure has", f.Name)
		delete(fields, n)
		require.Regexp(t, `^[a-z]+(_[a-z]+)*$`, f.Name)
		require.NotEmpty(t, f.Help)
		require.False(t, names[f.Name], f.Name)
		names[f.Name] = true
	}
	require.Empty(t, fields, "these numbers of regcache.Stats need a Figure: a name and a meaning")
}

func TestEveryReason(t *testing.T) {
	seen := map[string]bool{}
	for u := range hca.NumUnkept {
		name := Reason(u)
		require.Regexp(t, regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`), name)
		require.False(t, seen[name], name)
		seen[name] = true
		if u != hca.KeptAllRight {
			require.NotEmpty(t, Advice(u), "hca.Unkept %v needs an advice", u)
		}
	}
}
