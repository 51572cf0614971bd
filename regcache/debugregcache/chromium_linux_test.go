package debugregcache

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// browse opens url in a real browser without a window, lets its scripts live
// through the given time (of the browser's own clock, which does not run while an
// answer is awaited), and answers with the document as it stands then and with
// what the browser had to say. No process is left behind.
func browse(t *testing.T, url string, lifetime time.Duration) (document, messages string) {
	t.Helper()
	browser := os.Getenv("CHROMIUM")
	if browser == "" {
		browser = "/usr/bin/chromium"
	}
	if _, err := os.Stat(browser); err != nil {
		t.Skip("no browser: install Debian's package chromium, or set CHROMIUM to its path")
	}
	home := t.TempDir()
	ctx, cancel := context.WithTimeout(context.Background(), 120*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir="+home,
		"--enable-logging=stderr", fmt.Sprintf("--virtual-time-budget=%d", lifetime.Milliseconds()), "--dump-dom", url)
	cmd.Env = append(os.Environ(), "HOLDFAST_BROWSER="+home)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	err := cmd.Run()
	left := marked(t, home, 10*time.Second)
	for _, pid := range left {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	require.NoError(t, err, "%s\n%s", ctx.Err(), log.String())
	require.Empty(t, left, "processes of the browser outlived it")
	return out.String(), log.String()
}

// marked waits until no process has the mark in its environment or among its
// arguments, and answers with those that still have it after the limit. Some of
// the browser's processes show only the one, some only the other.
func marked(t *testing.T, mark string, limit time.Duration) []int {
	t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		var pids []int
		dirs, err := filepath.Glob("/proc/[0-9]*")
		require.NoError(t, err)
		for _, dir := range dirs {
			env, _ := os.ReadFile(dir + "/environ") // fails for who is gone, or another user's
			args, _ := os.ReadFile(dir + "/cmdline")
			pid, err := strconv.Atoi(filepath.Base(dir))
			require.NoError(t, err)
			if bytes.Contains(append(env, args...), []byte(mark)) && pid != os.Getpid() {
				pids = append(pids, pid)
			}
		}
		if len(pids) == 0 || time.Now().After(end) {
			return pids
		}
	}
}

// watched is a server of the page with a cache that is hit a hundred times
// before each answer, so that it is known what each answer shows.
type watched struct {
	*httptest.Server
	pages, lives atomic.Int64
	others       atomic.Pointer[string]
}

// watch starts one; spoil chooses answers to fail, by their number.
func watch(t *testing.T, spoil func(live int64) bool) *watched {
	c := newCache(t, "paper")
	buf := make([]byte, 64<<10)
	use(t, c, buf, 1)
	h := Handler(Named{Name: "seen in a browser", Cache: c})
	w := &watched{}
	w.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/debug/regcache":
			w.others.Store(&r.URL.Path)
			http.NotFound(rw, r)
			return
		case r.URL.Query().Get("format") == "live":
			if n := w.lives.Add(1); spoil != nil && spoil(n) {
				http.Error(rw, "spoiled", http.StatusInternalServerError)
				return
			}
		default:
			w.pages.Add(1)
		}
		use(t, c, buf, 100)
		h.ServeHTTP(rw, r)
	}))
	t.Cleanup(w.Close)
	return w
}

// shown is the number of hits and the round that a document shows.
func shown(t *testing.T, document string) (hits, round int) {
	t.Helper()
	m := regexp.MustCompile(`data-n="(\d+)" data-key="c0hits">([\d ]+)</b>`).FindStringSubmatch(document)
	require.NotNil(t, m, "%s", document)
	require.Equal(t, m[1], strings.ReplaceAll(m[2], " ", ""))
	hits, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	if m := regexp.MustCompile(`<body data-rounds="(\d+)"`).FindStringSubmatch(document); m != nil {
		round, err = strconv.Atoi(m[1])
		require.NoError(t, err)
	}
	return hits, round
}

// In a real browser the page shows the figures, keeps them up to date, works
// rates and curves out, asks nobody else for anything, and breaks no rule of its
// own policy.
func TestPageInABrowser(t *testing.T) {
	w := watch(t, nil)
	document, messages := browse(t, w.URL+"/debug/regcache", 6*time.Second)
	require.NotContains(t, messages, "CONSOLE", "the page's scripts or its policy complain")
	require.NotContains(t, messages, "Refused to")

	hits, round := shown(t, document)
	require.EqualValues(t, 1, w.pages.Load(), "the document itself is asked for once")
	require.GreaterOrEqual(t, round, 3)
	require.Equal(t, 100*(1+round), hits, "what stands there is what the last answer told")
	require.LessOrEqual(t, int64(round), w.lives.Load())
	require.LessOrEqual(t, w.lives.Load(), int64(round)+1, "one request at a time")
	require.Contains(t, document, `<span id="live" role="status">live</span>`)
	require.Regexp(t, `data-rate="c0hits">[\d ]+/s</i>`, document)
	require.NotContains(t, document, `data-rate="c0hits">0/s`)
	require.Regexp(t, `data-spark="c0hits"[^>]*><polyline points="[\d., ]+"`, document)
	require.Contains(t, document, "seen in a browser")
	if p := w.others.Load(); p != nil {
		require.Equal(t, "/favicon.ico", *p, "the page asks for something else")
	}
}

// When the program does not answer, the page says so and since when, keeps what
// it had, and goes on when the program is back.
func TestPageWithoutAnswers(t *testing.T) {
	gone := watch(t, func(live int64) bool { return live > 2 })
	document, _ := browse(t, gone.URL+"/debug/regcache", 15*time.Second)
	hits, round := shown(t, document)
	require.Equal(t, 2, round)
	require.Equal(t, 300, hits)
	require.Regexp(t, `id="live" role="status">no answer since .*\(status 500\)<`, document)
	require.Greater(t, gone.lives.Load(), int64(3), "it goes on asking")

	back := watch(t, func(live int64) bool { return live == 2 })
	document, _ = browse(t, back.URL+"/debug/regcache", 15*time.Second)
	hits, round = shown(t, document)
	require.Greater(t, round, 2)
	require.Equal(t, 100*(1+round), hits)
	require.Contains(t, document, `role="status">live<`)
}
