package ring

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
)

func TestLayout(t *testing.T) {
	// What reader.c takes for granted.
	require.Equal(t, uintptr(32), unsafe.Sizeof(Slot{}))
	require.Equal(t, uintptr(64), unsafe.Sizeof(Head{}))
	r := New(64)
	require.Zero(t, uintptr(unsafe.Pointer(r.Head))%64)
	require.Zero(t, uintptr(unsafe.Pointer(&r.Slots[0]))%64)
	require.Len(t, r.Slots, 64)
}

func event(i uint64) hca.Event {
	return hca.Event{Range: hca.Range{Addr: i, Len: ^i}, Cause: hca.CauseOwner}
}

func TestOvertaken(t *testing.T) {
	r := New(64)
	for i := range uint64(64) {
		r.Push(event(i), i)
	}
	for i := range uint64(64) {
		ev, stamp, ok := r.At(i)
		require.True(t, ok)
		require.Equal(t, event(i), ev)
		require.Equal(t, i, stamp)
	}
	r.Push(event(64), 64)
	_, _, ok := r.At(0)
	require.False(t, ok, "written over")
	_, _, ok = r.At(1)
	require.True(t, ok)
}

// A reader that is overtaken again and again never takes a mixture of two
// events for one.
func TestNeverTorn(t *testing.T) {
	r := New(64)
	const events = 300_000
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range uint64(events) {
			r.Push(event(i), i)
		}
	}()
	var read, lost int
	for at := uint64(0); at < events; {
		if at == r.Done() {
			continue
		}
		ev, stamp, ok := r.At(at)
		if !ok {
			lost++
			at = r.Done() - 32 // close enough to be overtaken again
			continue
		}
		if ev != event(at) || stamp != at {
			t.Fatalf("position %d holds %v, stamp %d", at, ev, stamp)
		}
		read++
		at++
	}
	<-done
	t.Logf("%d read, overtaken %d times", read, lost)
	require.Positive(t, read)
	require.Positive(t, lost)
}
