package intercept

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// definedIn gives the names of the tests and benchmarks of the packages in
// dirs.
func definedIn(t *testing.T, dirs ...string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files, dir)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w+)\(`).FindAllStringSubmatch(string(text), -1) {
				names[m[1]] = true
			}
		}
	}
	return names
}

// Every row of the tables of who sees what names the test that shows it, or
// says that there is none, and every test that docs/coherence.md names exists,
// in the package of the source that it is about.
func TestEveryRowHasItsTest(t *testing.T) {
	text, err := os.ReadFile("../docs/coherence.md")
	require.NoError(t, err)
	bpf := definedIn(t, "bpf")
	ours := definedIn(t, ".")
	all := definedIn(t, ".", "bpf", "../regcache", "../hcasim")
	called := regexp.MustCompile("`((?:Test|Benchmark)\\w+)(\\*?)`")
	figure := regexp.MustCompile(`^[0-9.]+( (ns|us|µs)|$)`) // of a table of what things cost, a ratio too
	section, tables, rows := "", false, 0
	for i, line := range strings.Split(string(text), "\n") {
		switch {
		case strings.HasPrefix(line, "## "):
			section, tables = line, line == "## Who sees what"
		case strings.HasPrefix(line, "### "):
			section = line
		}
		found := called.FindAllStringSubmatch(line, -1)
		for _, m := range found {
			if m[2] == "*" {
				some := false
				for name := range all {
					some = some || strings.HasPrefix(name, m[1])
				}
				require.True(t, some, "line %d: no test begins with %s", i+1, m[1])
				continue
			}
			require.True(t, all[m[1]], "line %d: there is no %s", i+1, m[1])
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		last := strings.TrimSpace(cells[len(cells)-1])
		isRow := tables && strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| |") &&
			last != "shown by" && !figure.MatchString(last)
		if !isRow {
			continue
		}
		rows++
		if len(called.FindAllString(last, -1)) == 0 {
			require.Contains(t, last, "no test", "line %d", i+1)
		}
		for _, m := range found {
			if section == "### Under bpf" && !strings.Contains(line, "as under userfaultfd") {
				require.True(t, bpf[m[1]], "line %d: %s is not in intercept/bpf", i+1, m[1])
			} else {
				require.True(t, ours[m[1]], "line %d: %s is not in intercept", i+1, m[1])
			}
		}
	}
	require.Greater(t, rows, 60, "the tables were not found")
}
