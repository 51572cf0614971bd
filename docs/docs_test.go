// Package docs holds documents, and this test, which keeps what they name true.
package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	root   = ".."
	module = "example.com/holdfast"
)

// source is a Go file of the project.
type source struct {
	path    string // from root, with slashes
	pkg     string // last element of its folder
	test    bool
	imports []string
	funcs   map[string]*ast.FuncDecl
}

// sources are all of them.
func sources(t *testing.T) (all []source) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && p != root && (name == "testdata" || strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		s := source{path: filepath.ToSlash(rel), test: strings.HasSuffix(p, "_test.go"), funcs: map[string]*ast.FuncDecl{}}
		s.pkg = path.Base(path.Dir(s.path))
		for _, i := range f.Imports {
			name, _ := strconv.Unquote(i.Path.Value) // the parser has seen that it is one
			s.imports = append(s.imports, name)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				s.funcs[fn.Name.Name] = fn
			}
		}
		all = append(all, s)
		return err
	}))
	require.Greater(t, len(all), 300, "the walk went astray")
	return all
}

// Every test and benchmark that a document names is there.
func TestNamedTestsExist(t *testing.T) {
	there := map[string]bool{}
	for _, s := range sources(t) {
		for name := range s.funcs {
			there[name] = there[name] || s.test
		}
	}
	files, err := filepath.Glob("*.md")
	require.NoError(t, err)
	named := 0
	for _, file := range append(files, root+"/README.md") {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile("`(?:[a-z]+\\.)?((?:Test|Benchmark)[A-Z]\\w*)").FindAllStringSubmatch(string(text), -1) {
			named++
			if !there[m[1]] && !(strings.HasSuffix(m[1], "_") && prefix(there, m[1])) {
				t.Errorf("%s names %s, which is not there", file, m[1])
			}
		}
	}
	require.Greater(t, named, 100)
}

// prefix reports whether p is one of a name that is there.
func prefix(there map[string]bool, p string) bool {
	for name, test := range there {
		if test && strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// The table of cases.md is complete and true: each case has a row, in order; each
// test that it names is there, in that package; each test whose name begins with
// TestC and a number is in the row of that number; and the worlds are those that
// the tests name.
func TestCases(t *testing.T) {
	const last = 42
	tests := map[string]source{} // by package and name
	numbered := map[int][]string{}
	for _, s := range sources(t) {
		if !s.test {
			continue
		}
		for name := range s.funcs {
			if !strings.HasPrefix(name, "Test") {
				continue
			}
			tests[s.pkg+"."+name] = s
			if m := regexp.MustCompile(`^TestC(\d+)_`).FindStringSubmatch(name); m != nil {
				n, err := strconv.Atoi(m[1])
				require.NoError(t, err)
				numbered[n] = append(numbered[n], s.pkg+"."+name)
			}
		}
	}
	text, err := os.ReadFile("cases.md")
	require.NoError(t, err)
	rows := regexp.MustCompile(`(?m)^\| C(\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$`).FindAllStringSubmatch(string(text), -1)
	require.Len(t, rows, last, "rows of cases")
	for i, row := range rows {
		n := i + 1
		require.Equal(t, strconv.Itoa(n), row[1], "the rows are in order")
		var named []string
		in := map[string]bool{}
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[3], -1) {
			named = append(named, m[1])
			s, ok := tests[m[1]]
			if !ok {
				t.Errorf("C%d: no test %s", n, m[1])
				continue
			}
			for _, w := range worldsOf(s, s.funcs[m[1][strings.Index(m[1], ".")+1:]]) {
				in[w] = true
			}
		}
		if len(named) == 0 {
			t.Errorf("C%d has no test", n)
		}
		for _, name := range numbered[n] {
			if !slices.Contains(named, name) {
				t.Errorf("C%d: %s is missing from the row", n, name)
			}
		}
		delete(numbered, n)
		if want := strings.Join(slices.Sorted(maps.Keys(in)), ", "); want != row[4] {
			t.Errorf("C%d: the tests run on: %s", n, want)
		}
	}
	require.Empty(t, numbered, "tests of cases that there are not")
}

// worldsOf says what a test runs on: the worlds of regcache's rig that it names
// (real_rig_linux_test.go), else what the tests of its package run on.
func worldsOf(s source, test *ast.FuncDecl) []string {
	var out []string
	ast.Inspect(test, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			if a, ok := n.Type.(*ast.ArrayType); ok && fmt.Sprint(a.Elt) == "world" {
				for _, e := range n.Elts {
					out = append(out, fmt.Sprint(e))
				}
				return false
			}
		case *ast.Ident:
			if n.Name == "worlds" {
				out = append(out, "all worlds")
			}
		}
		return true
	})
	if slices.Contains(out, "foreign") || slices.Contains(out, "all worlds") {
		out = append(out, "inKernel") // inWorlds adds it
	}
	if len(out) > 0 {
		return out
	}
	switch base := path.Base(s.path); {
	case strings.HasPrefix(base, "real_"), strings.HasPrefix(base, "live_"), base == "footprint_linux_test.go", s.pkg == "hcasim":
		return []string{"live device"}
	case s.pkg == "verbs":
		return []string{"Soft-RoCE"}
	case s.pkg == "intercept":
		return []string{"userfaultfd"}
	}
	return []string{"scripted"}
}

// Imports run downhill only: hca knows nobody; devices, sources of events and the
// cache know hca; backends know the cache; only bench knows all. Tests may look
// uphill.
func TestImportsRunDownhill(t *testing.T) {
	below := map[string][]string{
		"hca": {}, "hca/hcatest": {"hca"}, "hca/verbs": {"hca"}, "hcasim": {"hca"}, "intercept": {"hca"}, "regcache": {"hca"},
		"pinbackend": {"hca", "regcache"}, "odpbackend": {"hca", "regcache"},
		"bench":    {"hca", "hca/verbs", "hcasim", "intercept", "regcache", "pinbackend", "odpbackend"},
		"internal": {}, "docs": {},
		"intercept/internal/eventtest": {"hca", "internal"}, // only tests import it
	}
	// room is the longest of the rooms that a folder lies in.
	room := func(dir string) string {
		for ; dir != "."; dir = path.Dir(dir) {
			if _, ok := below[dir]; ok {
				return dir
			}
		}
		return ""
	}
	for _, s := range sources(t) {
		own := room(path.Dir(s.path))
		require.NotEmpty(t, own, "%s lies in no room", s.path)
		for _, i := range s.imports {
			dir, ok := strings.CutPrefix(i, module+"/")
			if !ok || s.test || strings.HasSuffix(s.pkg, "test") { // what tests share is of the tests
				continue
			}
			if to := room(dir); to != own && !slices.Contains(below[own], to) {
				t.Errorf("%s imports %s: %s may know %v and itself", s.path, i, own, below[own])
			}
		}
	}
}
