//go:build !race && !holdfast_debug

package regcache

// debugging is true in builds with the race detector or the tag holdfast_debug:
// see trace_on.go.
const debugging = false

type trace struct{}

func (r *Region) traceGet()     {}
func (r *Region) traceRelease() {}
func (r *Region) tracePoison()  {}

func (r *Region) traceHolders() []string { _ = r.cold.trace; return nil }
func (r *Region) traceReleases() string  { return "" }
