package hca

import (
	"fmt"
	"unsafe"
)

// Range is a piece of address space: Len bytes from Addr on. Addresses are
// numbers and not pointers, because a range may belong to memory that is gone,
// to a peer, or to a simulated host. A Range keeps nothing alive.
type Range struct {
	Addr uint64 // first byte
	Len  uint64 // bytes
}

// RangeOf gives the range of b, len(b) bytes. It does not keep b alive, and a
// slice whose array lies on a goroutine's stack moves when the stack grows: a
// caller that keeps the range has to keep b somewhere on the heap too.
func RangeOf(b []byte) Range {
	return Range{Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), Len: uint64(len(b))}
}

// End is the address after the last byte.
func (r Range) End() uint64 { return r.Addr + r.Len }

// Empty reports whether the range holds no byte.
func (r Range) Empty() bool { return r.Len == 0 }

// Valid reports whether the range holds at least one byte and does not run
// past the end of the 64-bit address space.
func (r Range) Valid() bool { return r.Len != 0 && r.Addr <= ^uint64(0)-r.Len }

// Contains reports whether every byte of s lies in r.
func (r Range) Contains(s Range) bool { return r.Addr <= s.Addr && s.End() <= r.End() }

// Overlaps reports whether r and s share a byte.
func (r Range) Overlaps(s Range) bool { return r.Addr < s.End() && s.Addr < r.End() }

// Pages widens the range to whole pages of the given size, a power of two. The
// result is cut at the last whole page of the address space.
func (r Range) Pages(pageSize uint64) Range {
	start := r.Addr &^ (pageSize - 1)
	end := r.End() + pageSize - 1
	if end < r.End() {
		end = ^uint64(0)
	}
	return Range{Addr: start, Len: end&^(pageSize-1) - start}
}

// String writes the range as [first,end) in hexadecimal with its length.
func (r Range) String() string {
	return fmt.Sprintf("[%#x,%#x) %s", r.Addr, r.End(), Bytes(r.Len))
}

// Bytes prints a count of bytes for people: 4096 B, 64 KiB, 3 MiB, 1 GiB.
type Bytes uint64

// String prints whole multiples of a unit in that unit, other counts in bytes
// below 10 KiB, and else with one digit after the point.
func (b Bytes) String() string {
	units := []struct {
		name string
		size Bytes
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}
	for _, u := range units {
		switch {
		case b < u.size:
		case b%u.size == 0:
			return fmt.Sprintf("%d %s", b/u.size, u.name)
		case b >= 10<<10:
			return fmt.Sprintf("%.1f %s", float64(b)/float64(u.size), u.name)
		}
	}
	return fmt.Sprintf("%d B", uint64(b))
}
