package verbs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Jobs beyond the queue's room are refused and not lost count of, and what was
// taken is done before stop returns.
func TestWorkers(t *testing.T) {
	w := newWorkers(2)
	hold, started := make(chan struct{}), make(chan struct{}, 2)
	done := make(chan struct{}, jobsQueued+2)
	job := func() {
		started <- struct{}{}
		<-hold
		w.done()
		done <- struct{}{}
		<-started
	}
	require.True(t, w.post(job))
	require.True(t, w.post(job))
	<-started
	<-started // both workers are at it
	started <- struct{}{}
	started <- struct{}{}
	for range jobsQueued {
		require.True(t, w.post(func() { w.done(); done <- struct{}{} }))
	}
	require.False(t, w.post(func() { t.Error("this one was refused") }))
	require.Equal(t, jobsQueued+2, w.pending())
	close(hold)
	w.stop()
	require.Zero(t, w.pending())
	require.Len(t, done, jobsQueued+2)
}
