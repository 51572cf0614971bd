package debugregcache

import (
	"encoding/json"
	"expvar"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/regcache"
)

// ask makes one request.
func ask(h http.Handler, method, query string) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, "/debug/regcache"+query, nil))
	return w.Result()
}

// get is the body of an answer that must be good.
func get(t testing.TB, h http.Handler, query string) string {
	t.Helper()
	res := ask(h, http.MethodGet, query)
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode, "%s", b)
	return string(b)
}

func TestHandlerForms(t *testing.T) {
	h := Handler(Named{Name: "x", Cache: newCache(t, "paper")})
	for query, kind := range map[string]string{
		"": "text/html; charset=utf-8", "?format=html": "text/html; charset=utf-8", "?format=live": "text/html; charset=utf-8",
		"?format=text": "text/plain; charset=utf-8", "?format=json": "application/json", "?top=0": "text/html; charset=utf-8",
	} {
		res := ask(h, http.MethodGet, query)
		require.Equal(t, http.StatusOK, res.StatusCode, query)
		require.Equal(t, kind, res.Header.Get("Content-Type"), query)
		require.Equal(t, "nosniff", res.Header.Get("X-Content-Type-Options"))
		require.Equal(t, "no-store", res.Header.Get("Cache-Control"))
	}
	for _, query := range []string{"?format=xml", "?top=x", "?top=-1", "?top=1001", "?regions=some"} {
		res := ask(h, http.MethodGet, query)
		require.Equal(t, http.StatusBadRequest, res.StatusCode, query)
		b, _ := io.ReadAll(res.Body)
		require.Contains(t, string(b), strings.Split(query[1:], "=")[0], "the answer names what was wrong")
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions} {
		res := ask(h, method, "")
		require.Equal(t, http.StatusMethodNotAllowed, res.StatusCode)
		require.Equal(t, "GET, HEAD", res.Header.Get("Allow"))
	}
	srv := httptest.NewServer(h)
	defer srv.Close()
	res, err := srv.Client().Head(srv.URL + "/anything")
	require.NoError(t, err)
	b, _ := io.ReadAll(res.Body)
	require.Empty(t, b)
	require.Equal(t, http.StatusOK, res.StatusCode)
	res.Body.Close()
	srv.Client().CloseIdleConnections()
}

func TestHandlerRefusesNil(t *testing.T) {
	require.Panics(t, func() { Handler(Named{Name: "x"}) })
	require.Contains(t, get(t, Handler(), ""), "given no cache")
	require.Contains(t, get(t, Handler(), "?format=text"), "none")
	require.Contains(t, get(t, Handler(), "?format=json"), `"caches": []`)
}

// The page brings all it needs, and allows nothing else.
func TestPageIsSelfContained(t *testing.T) {
	h := Handler(Named{Cache: newCache(t, "paper")})
	body := get(t, h, "")
	for _, url := range regexp.MustCompile(`(?:src|href|action)\s*=\s*"([^"]*)"|url\(([^)]*)\)|@import`).FindAllString(body, -1) {
		require.Regexp(t, `^href="(\?|#)`, url)
	}
	require.NotRegexp(t, `style\s*=\s*"`, body, "the policy forbids style attributes")
	require.NotRegexp(t, `\son[a-z]+\s*=\s*"`, body, "and handlers in attributes")
	policy := func() string { return ask(h, http.MethodGet, "").Header.Get("Content-Security-Policy") }
	require.Contains(t, policy(), "default-src 'none'")
	require.NotContains(t, policy(), "unsafe")
	require.NotEqual(t, policy(), policy(), "a nonce is used once")
	require.NotContains(t, body, "ZgotmplZ", "a template would not write a value")
}

// Whatever a cache, a backend or a monitor calls itself is text and nothing else.
func TestNamesAreEscaped(t *testing.T) {
	evil := `<script>alert(1)</script><img src=x onerror="x">'"&` + "\n== forged\t1"
	c, err := regcache.New(&paper{name: evil}, regcache.Config{Monitor: &silent{name: evil}, SweepEvery: -1})
	require.NoError(t, err)
	defer c.Close()
	h := Handler(Named{Name: evil, Cache: c, Monitor: seen{hca.MonitorStats{Source: evil + "2"}}}, Named{Cache: c})
	for _, query := range []string{"", "?format=live"} {
		body := get(t, h, query)
		require.Contains(t, body, "&lt;script&gt;alert(1)")
		require.NotContains(t, body, "<script>alert")
		require.NotContains(t, body, "<img")
	}
	require.NotContains(t, get(t, h, "?format=text"), "\n== forged")
	var r report
	require.NoError(t, json.Unmarshal([]byte(get(t, h, "?format=json")), &r))
	require.Equal(t, evil, r.Caches[0].Name)
	require.Equal(t, evil, r.Caches[0].Backend)
	require.Equal(t, evil, r.Caches[1].Name, "without a name it is the backend's")
}

// seen is a monitor's Stats.
type seen struct{ s hca.MonitorStats }

func (s seen) Stats() hca.MonitorStats { return s.s }

// What is shown is what happened, in each form.
func TestFiguresAreTrue(t *testing.T) {
	c := newCache(t, "paper")
	h := Handler(Named{Name: "x", Cache: c})
	require.Contains(t, get(t, h, "?format=json"), `"hit_ratio": null`)
	big, small := make([]byte, 1<<20), make([]byte, 64<<10)
	use(t, c, big, 1)
	use(t, c, small, 100)
	held, err := c.GetBytes(big, hca.LocalWrite)
	require.NoError(t, err)
	defer held.Release()
	once, err := c.Get(hca.Range{Addr: 1 << 40, Len: 4096}, hca.RemoteRead) // nobody sees it end
	require.NoError(t, err)
	defer once.Release()

	var r report
	require.NoError(t, json.Unmarshal([]byte(get(t, h, "?format=json&regions=all&top=1")), &r))
	x := r.Caches[0]
	require.EqualValues(t, 100, x.Counts["hits"])
	require.EqualValues(t, 3, x.Counts["misses"])
	require.InDelta(t, 100.0/103, *x.HitRatio, 1e-9)
	require.EqualValues(t, 3, x.Regions.Used)
	require.EqualValues(t, 1000, *x.Regions.Max)
	require.EqualValues(t, 1<<20+64<<10+4096, x.Pinned.Used)
	require.EqualValues(t, 64<<20, *x.Pinned.Max)
	require.Equal(t, []group{{"idle", 1, 64 << 10, 64 << 10}, {"in use", 1, 1 << 20, 1 << 20}, {"used once", 1, 4096, 4096}, {Name: "dead in use"}, {Name: "revoked"}, {Name: "dying"}}, x.States)
	require.Equal(t, []group{{"unknown", 1, 4096, 4096}, {Name: "foreign"}, {Name: "owned"}, {"held", 2, 1<<20 + 64<<10, 1<<20 + 64<<10}}, x.Kinds)
	require.Len(t, x.UsedOnce, 1)
	require.Equal(t, "no_source", x.UsedOnce[0].Name)
	require.EqualValues(t, 1, x.UsedOnce[0].Count)
	require.Len(t, x.Sizes, 9, "4 KiB to 1 MiB")
	require.Equal(t, "≤ 4 KiB", x.Sizes[0].Label)
	require.Equal(t, 1, x.Sizes[0].Regions+x.Sizes[8].Regions-1)
	require.Len(t, x.Busiest, 1)
	require.EqualValues(t, 99, x.Busiest[0].Hits)
	require.Equal(t, fmt.Sprintf("%#x", hca.RangeOf(small).Addr), x.Busiest[0].Start)
	require.Len(t, x.Next, 1)
	require.Equal(t, "idle", x.Next[0].State)
	require.Len(t, x.All, 3)
	require.True(t, slices.ContainsFunc(x.All, func(r region) bool {
		return r.Start == "0x10000000000" && r.End == "0x10000001000" && r.State == "used once" && r.Access == "RemoteRead" &&
			r.References == 1 && r.Why == "no source sees it end" && r.LKey == once.LKey()
	}))

	text := get(t, h, "?format=text&regions=all")
	require.Regexp(t, `(?m)^hits +100 `, text)
	require.Regexp(t, `(?m)^no source sees it end +1 +Give the cache`, text)
	require.Regexp(t, `(?m)^0x10000000000-0x10000001000 .* used once `, text)
	page := get(t, h, "")
	require.Regexp(t, `data-n="100" data-key="c0hits">100</b>`, page)
	require.Contains(t, page, "no source sees it end")

	require.NotContains(t, get(t, h, "?format=json"), "all_regions")
	require.NotContains(t, get(t, h, "?format=json&top=0"), "busiest")
}

// A cache that was closed is shown as what it is: empty.
func TestAfterClose(t *testing.T) {
	c := newCache(t, "paper")
	h := Handler(Named{Cache: c})
	use(t, c, make([]byte, 64<<10), 3)
	require.NoError(t, c.Close())
	for _, f := range []string{"", "?format=text", "?format=json"} {
		require.NotEmpty(t, get(t, h, f))
	}
	require.Contains(t, get(t, h, "?format=json"), `"hits": 2`)
	require.Contains(t, get(t, h, ""), "No Regions.")
}

// The names in the JSON form are a promise: more may come, none goes.
func TestJSONNames(t *testing.T) {
	c := newCache(t, "paper")
	r, err := c.Get(hca.Range{Addr: 1 << 40, Len: 4096}, 0)
	require.NoError(t, err)
	defer r.Release()
	use(t, c, make([]byte, 64<<10), 3)
	h := Handler(Named{Cache: c, Monitor: seen{hca.MonitorStats{Unknown: [hca.NumUnkept]uint64{hca.UnkeptRefused: 1}}}})
	var v any
	require.NoError(t, json.Unmarshal([]byte(get(t, h, "?format=json&regions=all")), &v))
	names := map[string]bool{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, e := range v {
				walk(path+"."+k, e)
			}
		case []any:
			for _, e := range v {
				walk(path+"[]", e)
			}
		default:
			names[strings.TrimPrefix(path, ".")+" "+strings.TrimPrefix(fmt.Sprintf("%T", v), "<")] = true
		}
	}
	walk("", v)
	if *update {
		golden(t, "names.txt", strings.Join(slices.Sorted(maps.Keys(names)), "\n")+"\n")
	}
	promised, err := os.ReadFile("testdata/names.txt")
	require.NoError(t, err)
	for n := range strings.Lines(string(promised)) {
		require.True(t, names[strings.TrimSpace(n)], "gone, or of another type: %s", n)
	}
}

// Var is what expvar wants, and stays small.
func TestVar(t *testing.T) {
	c := newCache(t, "paper")
	for range 50 {
		use(t, c, make([]byte, 64<<10), 1)
	}
	expvar.Publish(t.Name(), Var(Named{Name: "x", Cache: c}))
	s := expvar.Get(t.Name()).String()
	var r report
	require.NoError(t, json.Unmarshal([]byte(s), &r))
	require.EqualValues(t, 50, r.Caches[0].Counts["misses"])
	require.NotContains(t, s, "busiest")
	require.Less(t, len(s), 8<<10)
}

// Everything at once, for the race detector; and every answer is whole.
func TestConcurrentUse(t *testing.T) {
	c := newCache(t, "paper")
	h := Handler(Named{Name: "x", Cache: c}, Named{Name: "y", Cache: newCache(t, "other")})
	v := Var(Named{Cache: c})
	stop := make(chan struct{})
	var users, viewers sync.WaitGroup
	for range 2 {
		users.Go(func() {
			bufs := make([][]byte, 100)
			for i := range bufs {
				bufs[i] = make([]byte, 64<<10)
			}
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					use(t, c, bufs[i%len(bufs)], 1)
				}
			}
		})
	}
	for _, form := range []string{"", "?format=live", "?format=text&regions=all", "?format=json&regions=all"} {
		viewers.Go(func() {
			for range 15 {
				body := get(t, h, form)
				if strings.Contains(form, "json") && !json.Valid([]byte(body)) {
					t.Error("not JSON")
				}
				if form == "" && !strings.HasSuffix(body, "</html>\n") {
					t.Error("cut off")
				}
				if !json.Valid([]byte(v.String())) {
					t.Error("not JSON")
				}
			}
		})
	}
	viewers.Wait()
	close(stop)
	users.Wait()
}

// Who embeds the cache does not pull in a web server.
func TestCacheDoesNotImportHTTP(t *testing.T) {
	gotool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("needs the go command to list imports")
	}
	out, err := exec.Command(gotool, "list", "-deps", "example.com/holdfast/regcache").CombinedOutput()
	require.NoError(t, err, "%s", out)
	deps := strings.Fields(string(out))
	require.Contains(t, deps, "example.com/holdfast/hca")
	require.NotContains(t, deps, "net/http")
	require.NotContains(t, deps, "expvar")
}
