package childtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPatience(t *testing.T) {
	t.Setenv(patienceVar, "")
	require.Equal(t, time.Duration(1), patience(t))
	t.Setenv(patienceVar, "5")
	require.Equal(t, 5*time.Second, time.Second*patience(t))
}
