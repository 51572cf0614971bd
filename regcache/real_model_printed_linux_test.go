package regcache_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"example.com/holdfast/internal/childtest"
	"example.com/holdfast/regcache"
)

const printVar = "HOLDFAST_MODEL_PRINT"

// What the models print of a failing program is a test that a person can paste
// into this package: it compiles, and fails again; and passes on a cache that
// is not broken. Here it is laid over the package, and the go command builds and
// runs it.
func TestModel_PrintsGoTests(t *testing.T) {
	if raceDetector {
		t.Skip("what the go command builds here is no race build: run this without the race detector")
	}
	gotool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("needs the go command, to build what was printed")
	}
	here, err := os.Getwd()
	require.NoError(t, err)
	if _, err := os.Stat("real_model_linux_test.go"); err != nil {
		t.Skipf("needs the source of the package, to build what was printed: %v", err)
	}
	dir := os.Getenv(printVar)
	if !childtest.InChild() {
		dir = t.TempDir()
	}
	file := filepath.Join(dir, "real")
	childtest.Run(t, time.Minute, childEnv(printVar+"="+dir), func(t *testing.T) {
		k := newKit(t, trusting, regcache.Config{})
		m := newModel(t, k)
		found := ""
		for n := 0; n < 20 && found == ""; n++ {
			rapid.Check(t, func(t *rapid.T) {
				if r := drawRun(t); len(r.threads) == 1 && found == "" {
					if err := m.try(r); err != nil && wrongBytes(err) {
						found = m.shrink(r, err, "TestModelFoundReal")
					}
				}
			})
		}
		require.NotEmpty(t, found, "no program of a cache without interception went wrong")
		require.NoError(t, os.WriteFile(file, []byte(found), 0o600))
	})
	if childtest.InChild() {
		return
	}
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	real := string(b)
	good := strings.ReplaceAll(strings.ReplaceAll(real, "TestModelFoundReal", "TestModelGoodReal"), `"trusting"`, `"owned"`)
	good = strings.Replace(good, "1000, run{", "20, run{", 1)
	exact, sound := regcache.BrokenModelTest(t, "TestModelFoundExact", "TestModelGoodExact")
	t.Logf("printed:\n\n%s\n%s", real, exact)

	over := map[string]map[string]string{"Replace": {}}
	for name, src := range map[string]string{
		"printed_real_linux_test.go":  "package regcache_test\n\nimport \"testing\"\n\n" + real + "\n" + good,
		"printed_exact_linux_test.go": "package regcache\n\nimport \"testing\"\n\n" + exact + "\n" + sound,
	} {
		at := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(at, []byte(src), 0o600))
		over["Replace"][filepath.Join(here, name)] = at
	}
	b, err = json.Marshal(over)
	require.NoError(t, err)
	overlay := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(overlay, b, 0o600))
	cmd := exec.Command(gotool, "test", "-overlay", overlay, "-run", "^TestModel(Found|Good)(Real|Exact)$", "-count=1", "-timeout=60s", "-v", ".")
	out, err := cmd.CombinedOutput()
	require.Error(t, err, "the tests that were printed pass:\n%s", out)
	for _, want := range []string{"--- FAIL: TestModelFoundReal", "--- FAIL: TestModelFoundExact", "--- PASS: TestModelGoodReal", "--- PASS: TestModelGoodExact"} {
		require.Contains(t, string(out), want)
	}
}
