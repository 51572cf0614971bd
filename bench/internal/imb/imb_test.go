package imb

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSizes(t *testing.T) {
	sizes := DefaultMsgLog.Sizes()
	require.Len(t, sizes, 24)
	require.Equal(t, []int{0, 1, 2, 4}, sizes[:4])
	require.Equal(t, 4194304, sizes[23])
	require.Equal(t, []int{0, 8}, MsgLog{3, 3}.Sizes())
}

func TestParseMsgLog(t *testing.T) {
	for in, want := range map[string]MsgLog{"0:22": {0, 22}, "3:7": {3, 7}, "5:5": {5, 5}, "16": {0, 16}} {
		got, err := ParseMsgLog(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
	}
	for _, in := range []string{"", ":", "a", "3:", "7:3", "-1:3", "0:31", "1:2:3", "99999999999999999999"} {
		_, err := ParseMsgLog(in)
		require.Error(t, err, in)
	}
}

// The counts that the IMB documentation gives for its defaults.
func TestSelect(t *testing.T) {
	for size, want := range map[int]int{0: 1000, 1: 1000, 32 << 10: 1000, 64 << 10: 640, 128 << 10: 320,
		256 << 10: 160, 512 << 10: 80, 1 << 20: 40, 2 << 20: 20, 4 << 20: 10, 64 << 20: 1} {
		require.Equal(t, want, DefaultIter.Select(size), size)
	}
}

func TestDynamic(t *testing.T) {
	it := DefaultIter
	require.Equal(t, 1000, it.Dynamic(1, 0, 1, 1e-6))
	require.Equal(t, 101, it.Dynamic(1, 0, 1, 1e-2), "what fits into the time")
	require.Equal(t, 1, it.Dynamic(1, 0, 1, 1e9), "at least one")
	require.Equal(t, 7, it.Dynamic(1, 7, 1, 1e-6), "not more than the size before")
	require.Equal(t, 10, it.Dynamic(4<<20, 500, 1, 1e-6))
	require.Equal(t, 1000, it.Dynamic(1, 0, 1, 0))
}

func TestWarmUp(t *testing.T) {
	require.Equal(t, 100, WarmUp(1000))
	require.Equal(t, 10, WarmUp(50))
	require.Equal(t, 3, WarmUp(3))
}

func TestParseIter(t *testing.T) {
	for in, want := range map[string]Iter{"7": {7, 40, 100}, "7,8": {7, 8, 100}, "7,8,9": {7, 8, 9}} {
		got, err := ParseIter(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
	}
	for _, in := range []string{"", "0", "-3", "x", "1,", "1,2,3,4", "1,0", "1.5", "99999999999"} {
		_, err := ParseIter(in)
		require.Error(t, err, in)
	}
}

func TestLayoutOfPingPong(t *testing.T) {
	var b bytes.Buffer
	WriteTitle(&b, "PingPong")
	WriteRow(&b, 0, 1000, 1.23)
	WriteRow(&b, 1, 1000, 1.25)
	WriteRow(&b, 4194304, 10, 412.5)
	require.Equal(t, `
#---------------------------------------------------
# Benchmarking PingPong 
# #processes = 2 
#---------------------------------------------------
       #bytes #repetitions      t[usec]   Mbytes/sec
            0         1000         1.23         0.00
            1         1000         1.25         0.80
      4194304           10       412.50     10168.01
`, b.String())
}

func TestLayoutOfHeadAndFoot(t *testing.T) {
	var b bytes.Buffer
	WriteHead(&b, Head{Title: "T", Date: "Sun Nov 29 12:00:00 2026", Machine: "x86_64", System: "Linux", Release: "6", Version: "#1",
		Notes: [][2]string{{"Device", "d"}}, Command: "bench PingPong", MaxBytes: 4194304, Names: []string{"PingPong"}})
	WriteFoot(&b)
	require.Equal(t, `#----------------------------------------------------------------
#    T
#----------------------------------------------------------------
# Date                  : Sun Nov 29 12:00:00 2026
# Machine               : x86_64
# System                : Linux
# Release               : 6
# Version               : #1
# Device                : d


# Calling sequence was: 

# bench PingPong

# Minimum message length in bytes:   0
# Maximum message length in bytes:   4194304
#
# MPI_Datatype                   :   MPI_BYTE 
# MPI_Datatype for reductions    :   MPI_FLOAT 
# MPI_Op                         :   MPI_SUM  
# 
# 

# List of Benchmarks to run:

# PingPong


# All processes entering MPI_Finalize

`, b.String())
}
