// Package pattern fills memory with bytes that tell which repetition wrote
// them, and checks them. Two seeds that differ by less than 256 differ in the
// first byte of every word, so that old bytes are never taken for new ones,
// however short the message.
package pattern

import "encoding/binary"

// The multipliers are odd, so that the low byte of a word differs whenever
// seed or position differ by less than 256.
const (
	perSeed = 0x9E3779B97F4A7C15
	perWord = 0xC2B2AE3D27D4EB4F
)

// Fill writes the pattern of seed over b.
func Fill(b []byte, seed uint64) {
	v := seed * perSeed
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, v)
		b = b[8:]
		v += perWord
	}
	for i := range b {
		b[i] = byte(v >> (8 * i))
	}
}

// Wrong counts the bytes of b that are not the pattern of seed. It looks at
// every byte.
func Wrong(b []byte, seed uint64) (wrong int) {
	v := seed * perSeed
	for len(b) >= 8 {
		if got := binary.LittleEndian.Uint64(b); got != v {
			for i := range 8 {
				if byte(got>>(8*i)) != byte(v>>(8*i)) {
					wrong++
				}
			}
		}
		b = b[8:]
		v += perWord
	}
	for i := range b {
		if b[i] != byte(v>>(8*i)) {
			wrong++
		}
	}
	return wrong
}
