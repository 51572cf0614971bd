// Package figures has the name and the meaning of every number that
// regcache.Stats holds, for whoever shows them to people or machines: the debug
// page, expvar, the Prometheus collector. The names are stable. A test sees to
// it that no number of Stats is missing.
//
// There is nothing here but functions without state.
package figures

import (
	"math"
	"strings"

	"example.com/holdfast/hca"
	"example.com/holdfast/regcache"
)

// Figure is one number.
type Figure struct {
	Name  string // lower case with underscores; stable
	Help  string // what it counts, a sentence without its stop
	Count bool   // it only grows, from New on; else it is what is true now
	Unit  string // "bytes", or empty for things that are counted
	Value func(*regcache.Stats) uint64
}

// All gives every number of Stats, in an order that reads well. Stats.UsedOnce is
// not among them: it is one number for each Reason.
func All() []Figure {
	type s = regcache.Stats
	count := func(name, help string, v func(*s) uint64) Figure { return Figure{name, help, true, "", v} }
	now := func(name, help, unit string, v func(*s) uint64) Figure { return Figure{name, help, false, unit, v} }
	return []Figure{
		count("hits", "Gets answered from the index", func(s *s) uint64 { return s.Hits }),
		count("slow_hits", "of the hits, those that helped with events first or had joined a miss", func(s *s) uint64 { return s.SlowHits }),
		count("misses", "Gets that registered", func(s *s) uint64 { return s.Misses }),
		count("registrations", "registrations that the backend made", func(s *s) uint64 { return s.Registrations }),
		count("deregistrations", "registrations that the backend took back", func(s *s) uint64 { return s.Deregistrations }),
		count("failures", "Gets whose registration failed for good", func(s *s) uint64 { return s.Failures }),
		count("joined_errors", "Gets that got the error of a registration they had joined", func(s *s) uint64 { return s.JoinedErrors }),
		count("retries", "registrations tried again after something was given back", func(s *s) uint64 { return s.Retries }),
		count("redone", "registrations made again because an event had touched the range", func(s *s) uint64 { return s.Redone }),
		count("deregister_errors", "deregistrations that failed: leaked for good", func(s *s) uint64 { return s.DeregisterErrors }),
		count("evictions", "Regions given up for a limit", func(s *s) uint64 { return s.Evictions }),
		count("invalidations", "Regions whose memory went away", func(s *s) uint64 { return s.Invalidations }),
		count("revocations", "Regions deregistered although held, because they were exported so", func(s *s) uint64 { return s.Revocations }),
		count("replaced", "Regions that a better one made superfluous", func(s *s) uint64 { return s.Replaced }),
		count("merges", "registrations that took the place of a run of neighbours", func(s *s) uint64 { return s.Merges }),
		count("sweeps", "comparisons of what is kept with what is mapped", func(s *s) uint64 { return s.Sweeps }),
		count("swept", "Regions that a sweep dropped", func(s *s) uint64 { return s.Swept }),
		count("events", "events of the monitor that were applied", func(s *s) uint64 { return s.Events }),
		count("events_lost", "of the events, those that said that some were lost", func(s *s) uint64 { return s.EventsLost }),
		now("regions", "Regions in the index", "", func(s *s) uint64 { return uint64(s.Regions) }),
		now("registered", "registrations, those in use once and those dying too", "", func(s *s) uint64 { return uint64(s.Registered) }),
		now("in_use_once", "Regions in use that are out of the index", "", func(s *s) uint64 { return uint64(s.InUseOnce) }),
		now("pinned", "bytes pinned by all registrations", "bytes", func(s *s) uint64 { return s.BytesPinned }),
		now("dead", "of the bytes pinned, those of Regions out of look-up for ever and not deregistered yet", "bytes", func(s *s) uint64 { return s.BytesDead }),
		now("max_regions", "limit: registrations that are kept", "", func(s *s) uint64 { return uint64(s.MaxRegions) }),
		now("max_pinned", "limit: bytes that kept registrations pin", "bytes", func(s *s) uint64 { return s.MaxBytes }),
	}
}

// Unlimited is the value of max_pinned that means that there is no limit.
const Unlimited = math.MaxUint64

// Reason names a reason not to keep a Region, the way Figure.Name does.
func Reason(u hca.Unkept) string {
	switch u {
	case hca.KeptAllRight:
		return "kept"
	case hca.UnkeptNoSource:
		return "no_source"
	case hca.UnkeptDiscardSeen:
		return "discard_seen"
	case hca.UnkeptNotMapped:
		return "not_mapped"
	case hca.UnkeptRefused:
		return "refused"
	case hca.UnkeptLimit:
		return "limit"
	case hca.UnkeptUnsettled:
		return "unsettled"
	}
	return strings.ReplaceAll(u.String(), " ", "_")
}

// Advice is what a person can do where a reason comes up often.
func Advice(u hca.Unkept) string {
	switch u {
	case hca.UnkeptNoSource:
		return "Give the cache a monitor that sees this memory, map it through the monitor, or hand Go memory to GetBytes."
	case hca.UnkeptDiscardSeen:
		return "Somebody throws pages away with madvise. Map the memory through the monitor, or call Settled once that is over."
	case hca.UnkeptNotMapped:
		return "Part of the range was not mapped, or was mapped anew while it was registered. Usually the caller's race."
	case hca.UnkeptRefused:
		return "The kernel would not watch the mapping, as a rule because another userfaultfd of the process does. Map it through the monitor."
	case hca.UnkeptLimit:
		return "Everything else was in use, or the range is larger than the limit. Raise Config.MaxRegions or Config.MaxBytes, or release sooner."
	case hca.UnkeptUnsettled:
		return "Memory is unmapped so often that no quiet moment was found. Map and unmap less, or through the monitor."
	}
	return ""
}
