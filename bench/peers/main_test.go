package main

import (
	"bytes"
	"context"
	"math/bits"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/internal/leaktest"
)

// TestMain lets the test binary be a contender's process, as the command's
// binary is when it runs.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == asOurs {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	// A process with the race detector waits a second at its end for what other
	// threads have to report; ours end with all of theirs done.
	if os.Getenv("GORACE") == "" {
		os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	leaktest.Main(m)
}

func command(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	status = run(ctx, args, &out, &errs)
	return out.String(), errs.String(), status
}

// contenders are built and our own ones listed as the command does it.
func contenders(t *testing.T) (all []*contender) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, unpack(dir))
	for _, p := range peers {
		all = append(all, p.build(t.Context(), dir, filepath.Join(dir, "c")))
	}
	self, err := os.Executable()
	require.NoError(t, err)
	return append(all, ourContenders(self)...)
}

func TestTablesHaveEveryContender(t *testing.T) {
	for format, part := range map[string]string{"table": "all", "markdown": "front"} {
		out, errs, status := command(t, "-rounds=1", "-iters=500", "-regions=20", "-format="+format, "-part="+part)
		require.Zero(t, status, "%s%s", out, errs)
		require.NotContains(t, out, "FAILED")
		for _, p := range (options{regions: []uint32{20}, iters: 500, part: part}).parts() {
			for _, j := range p.jobs {
				if j.churn == churnNone || j.churn == churnMix { // the others need userfaultfd
					require.Contains(t, out, j.in(), "%s", format)
				}
			}
		}
		head := regexp.MustCompile(`(?m)^[| ]+(ucx[| ]+)?(libfabric[| ]+)?held[| ]+(?:[\d.]+x +)?owned[| ].*$`).FindString(out)
		require.NotEmpty(t, head, out)
		for _, c := range contenders(t) {
			about := regexp.MustCompile(`(?m)^[| ]*` + c.name + `[ |]+(.*?)[ |]*$`).FindStringSubmatch(out[strings.LastIndex(out, "who"):])
			require.NotNil(t, about, "%s is not in the notes:\n%s", c.name, out)
			if absent := strings.HasPrefix(about[1], "absent: "); !absent {
				require.Regexp(t, `(?m)^[| ].*\b`+c.name+`\b`, out, "no column and no row")
				require.Contains(t, about[1], c.about)
			} else {
				require.NotContains(t, head, c.name)
				require.False(t, c.name == "held" || c.name == "owned", "needs nothing and is absent")
			}
		}
	}
}

func allParts(regions []uint32, iters uint64) []part {
	return options{regions: regions, iters: iters, part: "all"}.parts()
}

func TestGrid(t *testing.T) {
	g := &grid{}
	g.row("", "one", "two")
	g.row("a|b", "1", "22.5")
	var plain, markdown strings.Builder
	g.plain(&plain)
	g.markdown(&markdown)
	require.Equal(t, "       one   two\n  a|b    1  22.5\n", plain.String())
	require.Equal(t, "|  | one | two |\n|---|---:|---:|\n| a\\|b | 1 | 22.5 |\n", markdown.String())
}

func TestGoFormat(t *testing.T) {
	out, errs, status := command(t, "-rounds=2", "-iters=200", "-format=go", "-part=hits", "-regions=8")
	require.Zero(t, status, "%s%s", out, errs)
	require.Contains(t, errs, "held  ", "who is who goes beside the figures")
	lines := regexp.MustCompile(`(?m)^BenchmarkHit/(\S+)/who=([-\w]+)\t\d+\t[\d.]+ ns/op\t[\d.]+ wall-ns/op$`).FindAllStringSubmatch(out, -1)
	count := map[string]int{}
	for _, l := range lines {
		count[l[1]+" "+l[2]]++
	}
	for _, j := range hitJobs([]uint32{8}, 1) {
		require.Equal(t, 2, count[j.name()+" held"], "%s\n%s", j.name(), out)
	}

	out, errs, status = command(t, "-rounds=1", "-iters=200", "-format=go", "-part=contention")
	require.Zero(t, status, "%s%s", out, errs)
	require.Regexp(t, `(?m)^BenchmarkContention/n=1/threads=4/churn=none/who=held\t800\t\d+ p50-ns\t\d+ p99-ns\t\d+ p99.9-ns\t[\d.]+ ran-%$`, out)
	require.NotContains(t, out, "BenchmarkHit")

	out, errs, status = command(t, "-rounds=1", "-iters=200", "-format=go", "-part=cold", "-regions=100")
	require.Zero(t, status, "%s%s", out, errs)
	for _, m := range []mode{modeMiss, modeEnd, modeElsewhere} {
		require.Regexp(t, `(?m)^BenchmarkCold/`+string(m)+`/n=100/who=owned\t200\t[\d.]+ ns/op$`, out)
	}

	out, errs, status = command(t, "-rounds=1", "-iters=200", "-format=go", "-part=front")
	require.Zero(t, status, "%s%s", out, errs)
	for _, who := range []string{"held-view", "owned-view", "held-batch", "owned-batch", "held", "owned"} {
		require.Regexp(t, `(?m)^BenchmarkFront/n=8/threads=1/who=`+who+`\t200\t[\d.]+ ns/op`, out)
	}
}

// The ranges of mixed sizes are what they are said to be.
func TestLayout(t *testing.T) {
	var classes, least, most uint64 = 0, 1 << 63, 0
	odd := 0
	for i := range uint32(1 << 17) {
		piece, start, length := layout(i)
		require.LessOrEqual(t, start+length+1, piece, "%d: pages at both ends are its own", i)
		require.Positive(t, length)
		if start%4096 != 0 && (start+length)%4096 != 0 {
			odd++
		}
		least, most, classes = min(least, length), max(most, length), classes|1<<bits.Len64(length-1)
		from, n := inside(length)
		require.LessOrEqual(t, from+n, length)
		require.Positive(t, n)
	}
	require.Greater(t, odd, 1<<17*9/10)
	require.Equal(t, 19, bits.OnesCount64(classes))
	require.Greater(t, least, uint64(2048))
	require.LessOrEqual(t, most, uint64(1<<30))
	require.Greater(t, most, uint64(1<<30-4096))
}

// The contenders do the same: their generators end with the same numbers.
func TestEverybodyDoesTheSameWork(t *testing.T) {
	all := contenders(t)
	for _, j := range []job{
		{regions: 16, threads: 1, iters: 3000},
		{regions: 8, threads: 2, iters: 3001}, // views and batches too, and a batch that is not full
		{regions: 40, threads: 1, iters: 3000, sizes: sizesMixed},
		{regions: 1200, threads: 1, iters: 3000, sizes: sizesInside},
		{regions: 16, threads: 1, iters: 3000, churn: churnMix},
		{regions: 100, threads: 3, iters: 3000, apart: true},
		{mode: modeContend, regions: 100, threads: 2, iters: 500},
		{mode: modeContend, regions: 3, threads: 1, iters: 50, churn: churnMix},
	} {
		if j.mode == "" {
			j.mode = modeHit
		}
		j = filled([]job{j}, "", j.iters)[0]
		if j.limit > 0 {
			j.limit = 20 * time.Second
		}
		var want uint64
		for t := range uint32(j.threads) {
			x := t*7919 + 1
			for range j.iters {
				x = x*1664525 + 1013904223
			}
			want += uint64(x)
		}
		for _, c := range all {
			c.slow = false
			c.run(t.Context(), j)
			require.NoError(t, c.failed)
			for _, m := range c.results[j.key()] {
				require.Equal(t, want, m.last, "%s, %s", c.name, j.name())
				if j.mode == modeContend {
					require.EqualValues(t, j.iters*uint64(j.threads), m.hist.TotalCount(), c.name)
				}
			}
			if c.name == "held" || c.name == "owned" || j.regions == 8 && (c.name == "held-view" || c.name == "owned-batch") {
				require.Len(t, c.results[j.key()], 1)
			}
		}
	}
}

// A time limit ends a job that is timed hit by hit.
func TestLimit(t *testing.T) {
	for _, c := range contenders(t) {
		j := job{mode: modeContend, sizes: sizesSame, regions: 4, threads: 1, iters: 1 << 40, churn: churnNone, limit: 5 * time.Millisecond}
		if c.slow {
			j.iters *= 10
		}
		c.run(t.Context(), j)
		require.NoError(t, c.failed)
	}
}

func TestAbsentPeers(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, unpack(dir))
	build := func(p peer) *contender { return p.build(t.Context(), dir, filepath.Join(dir, "c")) }

	no := build(peer{name: "none", source: "ucx.c", header: "no/such/header.h", install: "libnone-dev"})
	require.NoError(t, no.failed)
	if no.absent != "no gcc; apt install gcc libnone-dev" {
		require.Equal(t, "<no/such/header.h> is not installed; apt install libnone-dev", no.absent)
		// Installed, but another interface than the program's: said, and not ours to fail for.
		require.NoError(t, os.WriteFile(dir+"/c/odd.c", []byte("#include <stdio.h>\nint main(void) { return odd(; }\n"), 0o644))
		odd := build(peer{name: "odd", source: "odd.c", header: "stdio.h", install: "libodd-dev"})
		require.ErrorContains(t, odd.failed, "odd: does not build against the version installed")
		require.ErrorContains(t, odd.failed, "odd.c:2")
	}

	t.Setenv("PATH", dir)
	out, errs, status := command(t, "-rounds=1", "-iters=100", "-part=hits", "-regions=16")
	require.Zero(t, status, "%s%s", out, errs)
	require.Regexp(t, `(?m)^ucx +absent: no gcc; apt install gcc libucx-dev$`, out)
	require.Regexp(t, `(?m)^libfabric +absent: no gcc; apt install gcc libfabric-dev$`, out)
	require.NotContains(t, out, "ratio")
	require.Regexp(t, `(?m)^ +16 ranges, 1 thread +[\d.]+ `, out)
}

// A contender of another's whose process fails is named and takes nobody along;
// one of ours makes the command fail.
func TestFailures(t *testing.T) {
	j := filled([]job{{regions: 1, threads: 1}}, modeHit, 1)[0]
	broken := func(args ...string) *contender {
		c := newContender("broken", "", args...)
		c.ask(t.Context())
		if c.failed == nil {
			c.run(t.Context(), j)
		}
		return c
	}
	require.ErrorContains(t, broken("/bin/sh", "-c", "echo first >&2; echo second >&2; exit 3").failed, "broken: exit status 3: first")
	require.ErrorContains(t, broken("/bin/sh", "-c", "echo what is this").failed, "does not say what it is")
	require.ErrorContains(t, broken("/bin/sh", "-c", `[ $0 = about ] && echo about me || echo ns x`).failed, `answer ["ns" "x"]`)
	require.ErrorContains(t, broken("/bin/sh", "-c", `[ $0 = about ] && echo about me || echo huh 1`).failed, "unknown word")
	require.ErrorContains(t, broken("/bin/sh", "-c", `[ $0 = about ] && echo about me || echo sample 1 1`).failed, "not a sample")
	require.ErrorContains(t, broken("/bin/sh", "-c", `[ $0 = about ] && echo about me || true`).failed, "no answer to")
	some := newContender("some", "", "/bin/sh", "-c", `case $6 in same) echo absent no channels;; *) echo ns 2.5;; esac`, "sh")
	for range 2 {
		some.run(t.Context(), filled([]job{{regions: 3, threads: 1, churn: churnSame}}, modeHit, 1)[0])
		some.run(t.Context(), j)
	}
	require.Equal(t, "no channels", some.absent)
	require.Len(t, some.results, 1, "what it can do it does")
	require.Len(t, some.results[j.key()], 2)
	require.Equal(t, "it is cold", broken("/bin/sh", "-c", `[ $0 = about ] && echo about me || echo absent it is cold`).absent)
	good := broken("/bin/sh", "-c", `[ $0 = about ] && echo about me 1.0 || echo ns 2.5`)
	require.NoError(t, good.failed)
	require.Equal(t, "me 1.0", good.about)
	require.Equal(t, 2.5, good.results[j.key()][0].ns)
}

// A program of the user's takes part; the command does not fail for it.
func TestAlso(t *testing.T) {
	program := filepath.Join(t.TempDir(), "mine")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n[ $1 = about ] && echo about Mine 7.0 || echo ns 123.4\n"), 0o755))
	out, errs, status := command(t, "-rounds=1", "-iters=100", "-part=hits", "-regions=16", "-also=mine="+program, "-also=not=/no/such/program")
	require.Zero(t, status, "%s%s", out, errs)
	require.Regexp(t, `(?m)^mine +Mine 7.0$`, out)
	require.Regexp(t, `(?m)^not +FAILED: not: .*no such file`, out)
	require.Regexp(t, `(?m)^ +16 ranges, 1 thread .*\b123\.4 `, out)

	// In place of the peer of that name.
	out, errs, status = command(t, "-rounds=1", "-iters=100", "-part=hits", "-regions=16", "-threads=1", "-also=ucx="+program)
	require.Zero(t, status, "%s%s", out, errs)
	require.Equal(t, []string{"Mine 7.0"}, submatches(`(?m)^ucx +(.*)$`, out), out)
}

// Where the clock counts instructions, the tables say so and are of those.
func TestInstructions(t *testing.T) {
	program := filepath.Join(t.TempDir(), "mine")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n[ $1 = about ] && echo about Mine 7.0 || echo ns 123.4\n"), 0o755))
	for part, what := range map[string]string{
		"hits":  "hits: instructions of one thread per get and put",
		"front": "front: instructions of one thread per get and put",
		"cold":  "cold: instructions per miss",
	} {
		out, errs, status := command(t, "-rounds=1", "-iters=100", "-part="+part, "-regions=16", "-threads=1", "-instruction=2", "-also=ucx="+program)
		require.Zero(t, status, "%s%s", out, errs)
		require.Contains(t, out, what)
		require.Regexp(t, `(?m)^ +(16|8) ranges, .*\b61\.7 `, out)
		require.NotContains(t, out, "123.4")
		require.NotContains(t, out, "nanoseconds")
	}
}

// With -threads jobs that keep more threads busy are left out, and no others.
func TestThreads(t *testing.T) {
	count := func(threads int) (jobs int) {
		o := options{regions: []uint32{16, 65536}, iters: 7, part: "all", threads: threads}
		for _, p := range o.parts() {
			require.NotEmpty(t, p.jobs)
			for _, j := range p.jobs {
				if jobs++; threads > 0 {
					require.LessOrEqual(t, j.threads, threads)
					require.False(t, j.churn != churnNone && j.threads == threads, j.name())
				}
			}
		}
		return jobs
	}
	all := count(0)
	require.Equal(t, all, count(4))
	require.Equal(t, all-1, count(2), "four threads on one Region")
	// hits: 1 and 4 of other sizes; front: 2; cold: all 7; contention: 2.
	require.Equal(t, 2+4+2+7+2, count(1))
}

// The programs for another computer are the peers that can be built here, and
// nothing is measured.
func TestPrograms(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "programs")
	out, errs, status := command(t, "-programs="+dir)
	require.Zero(t, status, errs)
	for _, c := range contenders(t) {
		if path := filepath.Join(dir, c.name); c.ours {
			require.NoFileExists(t, path)
		} else if _, err := os.Stat(path); err == nil {
			require.Contains(t, out, path+"\n")
			got := peerAs(c.name, path)
			got.ask(t.Context())
			require.Equal(t, c.about, got.about)
		} else {
			require.Contains(t, errs, c.name+" is absent: ")
		}
	}
	require.NotContains(t, out, "ranges")
}

func submatches(expr, s string) (all []string) {
	for _, m := range regexp.MustCompile(expr).FindAllStringSubmatch(s, -1) {
		all = append(all, m[1])
	}
	return all
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-rounds=0":        "-rounds is 0",
		"-iters=0":         "-iters is 0",
		"-threads=-1":      "-threads is -1",
		"-instruction=-1":  "-instruction is -1",
		"-instruction=NaN": "-instruction is NaN",
		"-format=xml":      `-format is "xml"`,
		"-part=nothing":    `-part is "nothing"`,
		"something":        `what is "something"?`,
		"-regions=1":       `-regions is "1"`,
		"-regions=9,":      `-regions is "9,"`,
		"-also=this":       "want NAME=PROGRAM",
		"-suite=../x":      `-suite is "../x"`,
		"-bogus":           "not defined",
	} {
		out, errs, status := command(t, args)
		require.Equal(t, 2, status, args)
		require.Empty(t, out)
		require.Contains(t, errs, want)
	}
	_, errs, status := command(t, "-h")
	require.Zero(t, status)
	require.Contains(t, errs, "-rounds")
}

func TestJobs(t *testing.T) {
	for _, p := range allParts([]uint32{16, 1024, 65536}, 7) {
		seen := map[string]bool{}
		for _, j := range p.jobs {
			got, err := parseJob(j.args())
			require.NoError(t, err)
			require.Equal(t, j, got)
			require.False(t, seen[j.name()], "two jobs are called %s", j.name())
			seen[j.name()] = true
		}
	}
	for _, args := range []string{"", "hit", "hold 1 1 0 1 none 0 same", "hit 0 1 0 1 none 0 same", "hit 1 0 0 1 none 0 same",
		"hit 1 2 1 1 none 0 same", "hit x 1 0 1 none 0 same", "hit 1 1 0 1 none 0 small"} {
		_, err := parseJob(strings.Fields(args))
		require.Error(t, err, args)
	}
	_, errs, status := command(t, asOurs, "nothing", "hit", "1", "1", "0", "1", "none", "0", "same")
	require.Equal(t, 1, status)
	require.Contains(t, errs, `no contender of ours is called "nothing"`)
}

// Without what it takes to fetch another suite's peers, they are absent and say so.
func TestSuiteIsAbsent(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	why := func() string {
		all := suitePeers(t.Context(), "testing", t.TempDir(), t.TempDir())
		require.Len(t, all, len(peers))
		for i, c := range all {
			require.NoError(t, c.failed)
			require.Equal(t, peers[i].name+"-testing", c.name)
			require.Equal(t, all[0].absent, c.absent)
		}
		return all[0].absent
	}
	for name, script := range map[string]string{
		"dpkg": "echo amd64", "dpkg-deb": "exit 0",
		"apt-get": "echo E: The repository does not exist. >&2; exit 100",
	} {
		require.NotContains(t, why(), "repository")
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	if absent := why(); !strings.Contains(absent, "no Debian package source") { // on another system than Debian
		require.Regexp(t, `^apt-get update of Debian testing from \S+: exit status 100: E: The repository does not exist.$`, absent)
	}
	left, err := filepath.Glob(filepath.Join(os.Getenv("XDG_CACHE_HOME"), "holdfast-peers", "*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// A suite that was fetched before all of the peers were is fetched again; one
// that has them all is not.
func TestSuiteIsFetchedOnce(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("PATH", t.TempDir()) // with nothing to fetch by
	tree := filepath.Join(cache, "holdfast-peers", "testing", "usr")
	for i, p := range peers {
		_, err := openSuite(t.Context(), "testing")
		require.ErrorContains(t, err, "no apt-get to fetch", "%d of the peers are there", i)
		header := filepath.Join(tree, "include", p.header)
		require.NoError(t, os.MkdirAll(filepath.Dir(header), 0o755))
		require.NoError(t, os.WriteFile(header, nil, 0o644))
	}
	_, err := openSuite(t.Context(), "testing")
	require.ErrorContains(t, err, "no loader")
	loader := filepath.Join(tree, "lib", "here", "ld-linux-here.so.2")
	require.NoError(t, os.MkdirAll(filepath.Dir(loader), 0o755))
	require.NoError(t, os.WriteFile(loader, nil, 0o755))
	s, err := openSuite(t.Context(), "testing")
	require.NoError(t, err)
	require.Equal(t, suiteFiles{suite: "testing", include: filepath.Join(tree, "include"), libs: filepath.Dir(loader), loader: loader}, s)
	no := s.compile(t.Context(), peers[0], t.TempDir(), t.TempDir(), nil)
	require.Equal(t, "no gcc; apt install gcc", no.absent)
}

// The real thing, from Debian's servers: HOLDFAST_PEERS_SUITE=testing.
func TestSuite(t *testing.T) {
	suite := os.Getenv("HOLDFAST_PEERS_SUITE")
	if suite == "" {
		t.Skip("HOLDFAST_PEERS_SUITE names no suite of Debian to download from")
	}
	all := suitePeers(t.Context(), suite, t.TempDir(), filepath.Join(unpacked(t), "c"))
	require.Len(t, all, 2)
	ucx, libfabric := all[0], all[1]
	require.NoError(t, ucx.failed)
	require.Empty(t, ucx.absent)
	require.Regexp(t, `^UCX \d+\.\d+`, ucx.about)
	j := filled([]job{{regions: 16, threads: 1}}, modeHit, 1000)[0]
	ucx.run(t.Context(), j)
	require.NoError(t, ucx.failed)
	require.Len(t, ucx.results[j.key()], 1)
	require.Contains(t, libfabric.absent, "-programs")

	// And for another computer: each beside the libraries that it links.
	dir := t.TempDir()
	out, errs, status := command(t, "-suite="+suite, "-programs="+dir)
	require.Zero(t, status, errs)
	for _, name := range []string{"ucx-" + suite, "libfabric-" + suite} {
		require.Contains(t, out, filepath.Join(dir, name)+"\n")
	}
	for _, name := range []string{"libucp.so.0", "libucs.so.0", "libucm.so.0", "libuct.so.0", "libfabric.so.1"} {
		require.FileExists(t, filepath.Join(dir, name))
	}
	require.NoFileExists(t, filepath.Join(dir, "libc.so.6"))
}

func unpacked(t *testing.T) string {
	dir := t.TempDir()
	require.NoError(t, unpack(dir))
	return dir
}

func TestMedian(t *testing.T) {
	of := func(ns ...float64) float64 {
		var all []measurement
		for _, n := range ns {
			all = append(all, measurement{ns: n})
		}
		return median(all, nsOf)
	}
	require.Equal(t, 0.0, of())
	require.Equal(t, 3.0, of(3))
	require.Equal(t, 3.0, of(9, 3, 1))
	require.Equal(t, 2.5, of(9, 3, 1, 2))
}
