package verbs

import (
	"testing"

	"example.com/holdfast/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
