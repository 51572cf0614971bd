package regcache_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/hcasim"
	"example.com/holdfast/odpbackend"
	"example.com/holdfast/pinbackend"
	"example.com/holdfast/regcache"
)

// The worlds of the model test, beside those of the other tests. Together they
// have every backend (pinned; on demand as a whole, in windows, by range; several
// joined), every source (userfaultfd whole, narrow and short of room, programs in
// the kernel, explicit calls, none), every kind of memory (held in all of them,
// owned, foreign, unknown), and one monitor with several caches.
var (
	// Some of the memory is owned, the rest foreign, or unknown where only
	// calls are heard.
	mixed      = world{name: "mixed", monitor: foreign.monitor, keeps: true, mixed: true}
	mixedCalls = world{name: "mixed_calls", monitor: owned.monitor, keeps: true, mixed: true}
	mixedBPF   = world{name: "mixed_bpf", monitor: inKernel.monitor, keeps: true, discards: true, mixed: true}

	// Several adapters, and several caches of different backends over one monitor.
	joinedPins = world{name: "joined_pins", monitor: foreign.monitor, keeps: true, several: stacksOf([]string{"pin", "pin"})}
	joinedBoth = world{name: "joined_pin_and_odp", monitor: foreign.monitor, keeps: true, several: stacksOf([]string{"pin", "range"})}
	joinedODP  = world{name: "joined_odp", keeps: true, discards: true, several: stacksOf([]string{"whole", "range"})}
	many       = world{name: "many", monitor: foreign.monitor, keeps: true, mixed: true, several: everyBackend}
	manyBPF    = world{name: "many_bpf", monitor: inKernel.monitor, keeps: true, discards: true, mixed: true, several: everyBackend}
	manyCalls  = world{name: "many_calls", monitor: owned.monitor, owned: true, keeps: true, discards: true, several: everyBackend}

	// The device now and then refuses what it could do: out of keys, out of
	// memory, or for no good reason.
	flaky      = world{name: "foreign_flaky", monitor: foreign.monitor, keeps: true, flaky: true}
	flakyOwned = world{name: "owned_flaky", monitor: ownedBoth.monitor, owned: true, keeps: true, discards: true, flaky: true}
)

// inWorlds adds that of programs in the kernel.
var modelWorlds = []world{foreign, oneChannel, smallRing, owned, ownedBoth, strict, unseen, alone, odpWhole, odpWindows, odpRange,
	mixed, mixedCalls, mixedBPF, joinedPins, joinedBoth, joinedODP, many, manyBPF, manyCalls, flaky, flakyOwned}

var everyBackend = stacksOf([]string{"pin"}, []string{"whole"}, []string{"pin", "pin"}, []string{"windows"}, []string{"range", "pin"})

// stack is what a cache runs on.
type stack struct {
	back     *counting
	adapters []adapter // as many as its Regions have registrations, in that order
}

// adapter is a device, and how it is used.
type adapter struct {
	dev     *hcasim.Device
	follows bool // on demand: it sees what the processor would
}

// follows reports whether no adapter of the stack pins.
func (s *stack) follows() bool {
	for _, a := range s.adapters {
		if !a.follows {
			return false
		}
	}
	return true
}

// stacksOf makes stacks of one or more backends each, on as many devices as the
// longest of them has.
func stacksOf(names ...[]string) func(t *testing.T, k *kit) []stack {
	return func(t *testing.T, k *kit) (out []stack) {
		devices := []*hcasim.Device{k.a}
		for _, parts := range names {
			s := stack{back: &counting{out: map[*hca.MR]int{}}}
			var backs []regcache.Backend
			for i, name := range parts {
				if i == len(devices) {
					d, err := hcasim.Open(hcasim.Live{Fabric: k.fab})
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, d.Close(), "something was leaked") })
					devices = append(devices, d)
				}
				s.adapters = append(s.adapters, adapter{devices[i], name != "pin"})
				switch name {
				case "pin":
					backs = append(backs, pinbackend.New(devices[i]))
				case "whole":
					backs = append(backs, onDemand(odpbackend.ModeWhole)(devices[i]))
				case "windows":
					backs = append(backs, onDemand(odpbackend.ModeWindows)(devices[i]))
				case "range":
					backs = append(backs, onDemand(odpbackend.ModeRange)(devices[i]))
				}
			}
			var err error
			s.back.Backend, err = regcache.Join(backs...)
			require.NoError(t, err)
			out = append(out, s)
		}
		return out
	}
}

var errWhim = errors.New("for no good reason")

// whims is when a flaky device refuses.
func whims() error {
	switch rand.IntN(40) {
	case 0:
		return &hca.OpError{Op: "whim", Err: hca.ErrNoKeys}
	case 1:
		return &hca.OpError{Op: "whim", Err: hca.ErrNoMemory}
	case 2:
		return errWhim
	case 3:
		return &hca.OpError{Op: "whim", Err: hca.ErrBadAddress}
	}
	return nil
}

// excuse is nil for an error that a flaky device is the reason of.
func (k *kit) excuse(err error) error {
	if k.flaky && (errors.Is(err, errWhim) || errors.Is(err, hca.ErrNoKeys) || errors.Is(err, hca.ErrNoMemory) || errors.Is(err, hca.ErrBadAddress)) {
		return nil
	}
	return err
}
