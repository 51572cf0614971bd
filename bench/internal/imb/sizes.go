package imb

import (
	"fmt"
	"strconv"
	"strings"
)

// MsgLog is the range of message sizes of -msglog: 0 and then the powers of
// two from 1<<Min to 1<<Max bytes.
type MsgLog struct{ Min, Max int }

// DefaultMsgLog is 0:22, up to 4 MiB.
var DefaultMsgLog = MsgLog{Min: 0, Max: 22}

// MaxMsgLog is the largest exponent taken: messages of 1 GiB.
const MaxMsgLog = 30

// ParseMsgLog reads "min:max", or "max" alone, which means 0:max.
func ParseMsgLog(s string) (MsgLog, error) {
	lo, hi, both := strings.Cut(s, ":")
	if !both {
		lo, hi = "0", s
	}
	low, errLow := strconv.Atoi(lo)
	high, errHigh := strconv.Atoi(hi)
	if errLow != nil || errHigh != nil {
		return MsgLog{}, fmt.Errorf("%q is not min:max, two exponents of two", s)
	}
	if low < 0 || low > high || high > MaxMsgLog {
		return MsgLog{}, fmt.Errorf("%q: 0 <= min <= max <= %d is needed", s, MaxMsgLog)
	}
	return MsgLog{Min: low, Max: high}, nil
}

// String writes what ParseMsgLog reads.
func (m MsgLog) String() string { return fmt.Sprintf("%d:%d", m.Min, m.Max) }

// Sizes lists the message sizes, smallest first.
func (m MsgLog) Sizes() []int {
	sizes := []int{0}
	for log := m.Min; log <= m.Max; log++ {
		sizes = append(sizes, 1<<log)
	}
	return sizes
}
