package compare

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func filled() *Table {
	var t Table
	for size, us := range map[int]float64{0: 1, 64: 10, 65536: 20, 1 << 20: 40} {
		t.Add("direct", "same", size, us)
		t.Add("direct", "fresh", size, us*2)
		t.Add("pin", "same", size, us/4)
		t.Add("pin", "fresh", size, us*2.1)
		t.Add("odp", "same", size, us)
		t.Add("odp", "fresh", size, us*4)
	}
	return &t
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	filled().Write(&b)
	require.Equal(t, `
#--------------------------------------------------------------------------------------------
# Backends compared: median t[usec] of a message, and times that of direct
#--------------------------------------------------------------------------------------------
        buffers       #bytes       direct          pin          odp   pin/direct   odp/direct
           same           64        10.00         2.50        10.00         0.25         1.00
           same        65536        20.00         5.00        20.00         0.25         1.00
           same      1048576        40.00        10.00        40.00         0.25         1.00
          fresh           64        20.00        21.00        40.00         1.05         2.00
          fresh        65536        40.00        42.00        80.00         1.05         2.00
          fresh      1048576        80.00        84.00       160.00         1.05         2.00
`, b.String())
}

// More backends than fit beside their ratios: a table of each, and long names
// in two lines.
func TestManyBackends(t *testing.T) {
	tb := filled()
	tb.Add("odp-windows+prefetch", "same", 64, 5)
	var b bytes.Buffer
	tb.Write(&b)
	require.Equal(t, `
#-------------------------------------------------------------------------------
# Backends compared: median t[usec] of a message
#-------------------------------------------------------------------------------
        buffers       #bytes       direct          pin          odp  odp-windows
                                                                       +prefetch
           same           64        10.00         2.50        10.00         5.00
           same        65536        20.00         5.00        20.00            -
           same      1048576        40.00        10.00        40.00            -
          fresh           64        20.00        21.00        40.00            -
          fresh        65536        40.00        42.00        80.00            -
          fresh      1048576        80.00        84.00       160.00            -

#------------------------------------------------------------------
# Backends compared: times that of direct
#------------------------------------------------------------------
        buffers       #bytes          pin          odp  odp-windows
                                                          +prefetch
           same           64         0.25         1.00         0.50
           same        65536         0.25         1.00            -
           same      1048576         0.25         1.00            -
          fresh           64         1.05         2.00            -
          fresh        65536         1.05         2.00            -
          fresh      1048576         1.05         2.00            -
`, b.String())
}

func TestConclude(t *testing.T) {
	require.Equal(t, "Against direct, pin saves time with same (0.25x) and makes no difference with fresh (1.05x); "+
		"odp makes no difference with same (1.00x) and costs time with fresh (2.00x); "+
		"the fastest over all of it is pin (0.51x).", filled().Conclude())
}

func TestNothingToCompare(t *testing.T) {
	var empty Table
	require.Empty(t, empty.Conclude())
	var b bytes.Buffer
	empty.Write(&b)
	require.Empty(t, b.String())

	var alone Table
	alone.Add("odp", "same", 64, 1)
	require.Empty(t, alone.Conclude())
	alone.Write(&b)
	require.Contains(t, b.String(), "1.00")

	var zero Table
	zero.Add("direct", "same", 0, 1)
	zero.Add("pin", "same", 0, 1)
	require.Empty(t, zero.Conclude(), "messages of no bytes need no registration")
}

func TestSizesShown(t *testing.T) {
	var tb Table
	for _, s := range []int{0, 8, 16} {
		tb.Add("direct", "same", s, 1)
	}
	require.Equal(t, []int{16}, tb.Sizes(), "the largest, where none of the usual ones was run")
	tb.Add("direct", "same", 64, 1)
	require.Equal(t, []int{64}, tb.Sizes())
}

func TestMissingCells(t *testing.T) {
	var tb Table
	tb.Add("direct", "same", 64, 2)
	tb.Add("pin", "fresh", 64, 2)
	var b bytes.Buffer
	tb.Write(&b)
	require.Contains(t, b.String(), "           same           64         2.00            -            -")
	require.Empty(t, tb.Conclude())
}
