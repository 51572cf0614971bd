package leaktest

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { Main(m) }

// Every test binary of the project looks for what its tests left: where there are
// tests, there is a TestMain that calls Main.
func TestEveryBinaryLooks(t *testing.T) {
	const root = "../.."
	looks := map[string]bool{} // directories with tests
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && path != root && (name == "testdata" || strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		src, err := os.ReadFile(path)
		main := bytes.Contains(src, []byte("\nfunc TestMain(")) &&
			(bytes.Contains(src, []byte(" leaktest.Main(m)")) || bytes.Contains(src, []byte("\tleaktest.Main(m)")) || bytes.Contains(src, []byte("{ Main(m) }\n")))
		looks[filepath.Dir(path)] = looks[filepath.Dir(path)] || main
		return err
	}))
	require.Greater(t, len(looks), 20, "the walk went astray")
	for dir, yes := range looks {
		require.True(t, yes, "the tests in %s have no TestMain that calls leaktest.Main", dir)
	}
}
