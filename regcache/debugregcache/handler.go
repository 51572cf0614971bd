package debugregcache

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Handler answers requests for the page about the given caches, in the form that
// the request's query asks for (see the package's documentation), under any path.
// It answers GET and HEAD only, and 400 for a query that makes no sense.
//
// It panics if a cache is nil.
func Handler(caches ...Named) http.Handler {
	for i, c := range caches {
		if c.Cache == nil {
			panic(fmt.Sprintf("debugregcache: Handler: cache number %d (%q) is nil", i, c.Name))
		}
	}
	return &handler{caches: append([]Named(nil), caches...)}
}

type handler struct {
	caches []Named
	// one is held while a report is made, so that many viewers cost no more
	// than one at a time.
	one sync.Mutex
}

const (
	defaultTop = 10
	maxTop     = 1000
)

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Cache-Control", "no-store")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		head.Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	format, d, err := parse(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.one.Lock()
	began := time.Now()
	rep := makeReport(h.caches, d)
	took := time.Since(began)
	h.one.Unlock()

	var body bytes.Buffer
	kind := "text/html; charset=utf-8"
	switch format {
	case "json":
		kind = "application/json"
		enc := json.NewEncoder(&body)
		enc.SetIndent("", "  ")
		err = enc.Encode(rep)
	case "text":
		kind = "text/plain; charset=utf-8"
		err = writeText(&body, rep)
	case "live":
		err = pages.ExecuteTemplate(&body, "live", page{report: rep, Took: took, Top: d.top})
	default:
		nonce := rand.Text()
		// Nothing from elsewhere, nothing that was not written here.
		head.Set("Content-Security-Policy", "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "+
			"style-src 'nonce-"+nonce+"'; script-src 'nonce-"+nonce+"'")
		err = pages.ExecuteTemplate(&body, "page", page{report: rep, Took: took, Top: d.top, Nonce: nonce})
	}
	if err != nil { // a mistake of this package's: nothing that was asked for causes it
		http.Error(w, "making the report: "+err.Error(), http.StatusInternalServerError)
		return
	}
	head.Set("Content-Type", kind)
	head.Set("Content-Length", strconv.Itoa(body.Len()))
	_, _ = w.Write(body.Bytes()) // who went away needs no answer
}

// parse reads the query.
func parse(r *http.Request) (format string, d detail, err error) {
	d.top = defaultTop
	q := r.URL.Query()
	format = q.Get("format")
	switch format {
	case "", "html", "live", "text", "json":
	default:
		return "", d, fmt.Errorf("format=%q: there are html, text and json", format)
	}
	if s := q.Get("top"); s != "" {
		if d.top, err = strconv.Atoi(s); err != nil || d.top < 0 || d.top > maxTop {
			return "", d, fmt.Errorf("top=%q: a number from 0 to %d", s, maxTop)
		}
	}
	switch s := q.Get("regions"); s {
	case "":
	case "all":
		d.all = true
	default:
		return "", d, fmt.Errorf("regions=%q: there is only all", s)
	}
	return format, d, nil
}
