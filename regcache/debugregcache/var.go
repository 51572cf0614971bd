package debugregcache

import "encoding/json"

// Var is a variable for expvar.Publish: the JSON form of the page without the
// Regions. Asking for it costs what a report costs.
func Var(caches ...Named) interface{ String() string } {
	return variable(append([]Named(nil), caches...))
}

type variable []Named

// String is the report in JSON, as expvar.Var wants it.
func (v variable) String() string {
	b, err := json.Marshal(makeReport(v, detail{}))
	if err != nil { // there is nothing in a report that cannot be written
		b, _ = json.Marshal(map[string]string{"error": err.Error()})
	}
	return string(b)
}
