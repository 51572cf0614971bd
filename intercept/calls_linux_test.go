package intercept

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
)

// The explicit calls on a monitor without a kernel source, so that these run
// in every build.

func TestCalls_MmapMunmap(t *testing.T) {
	m := explicit(t)
	f, err := m.Subscribe(nil)
	require.NoError(t, err)
	defer f.Close()
	n := int(4 * pageSize)
	b, err := m.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	r := hca.RangeOf(b)
	require.Empty(t, drain(f))
	require.Equal(t, hca.MemOwned, m.Watch(r).Kind)
	b[0], b[n-1] = 1, 2

	require.NoError(t, m.Madvise(b, unix.MADV_DONTNEED))
	require.NoError(t, m.Madvise(b, unix.MADV_WILLNEED))
	require.Equal(t, []hca.Event{{Range: r, Cause: hca.CauseDiscard}}, drain(f), "the other one takes nothing away")
	require.Equal(t, hca.MemOwned, m.Watch(r).Kind)

	require.NoError(t, m.Munmap(b[:pageSize]))
	require.Equal(t, []hca.Event{{Range: hca.Range{Addr: r.Addr, Len: pageSize}, Cause: hca.CauseUnmap}}, drain(f))
	require.Equal(t, hca.MemUnknown, m.Watch(r).Kind)
	rest := b[pageSize:]
	require.Equal(t, hca.MemOwned, m.Watch(hca.RangeOf(rest)).Kind)

	// A call that fails leaves everything as it was.
	err = m.Munmap(rest[1:])
	require.ErrorIs(t, err, unix.EINVAL)
	var oe *hca.OpError
	require.ErrorAs(t, err, &oe)
	require.Equal(t, "munmap", oe.Op)
	require.Equal(t, hca.MemOwned, m.Watch(hca.RangeOf(rest)).Kind)
	require.ErrorIs(t, m.Madvise(rest[1:], unix.MADV_DONTNEED), unix.EINVAL)
	require.Zero(t, m.own.used)
	require.NoError(t, m.Munmap(rest))
	require.Equal(t, hca.MemUnknown, m.Watch(hca.RangeOf(rest)).Kind)
}

func TestCalls_Mremap(t *testing.T) {
	m := explicit(t)
	n := int(2 * pageSize)
	b, err := m.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	b[0] = 7
	old := hca.RangeOf(b)
	f, err := m.Subscribe(nil)
	require.NoError(t, err)
	defer f.Close()
	b, err = m.Mremap(b, 64*n, unix.MREMAP_MAYMOVE)
	require.NoError(t, err)
	require.Equal(t, []hca.Event{{Range: old, Cause: hca.CauseRemap}}, drain(f))
	require.Equal(t, byte(7), b[0])
	require.Len(t, b, 64*n)
	require.Equal(t, hca.MemOwned, m.Watch(hca.RangeOf(b)).Kind)
	if !hca.RangeOf(b).Overlaps(old) {
		require.Equal(t, hca.MemUnknown, m.Watch(old).Kind)
	}

	// Onto memory that is owned: both ends are announced.
	dst, err := m.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	src := hca.Range{Addr: hca.RangeOf(b).Addr, Len: uint64(n)}
	got, err := m.Remap(src, src.Len, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, hca.RangeOf(dst).Addr)
	require.NoError(t, err)
	require.Equal(t, hca.RangeOf(dst), got)
	require.Equal(t, byte(7), dst[0])
	require.Equal(t, []hca.Event{{Range: src, Cause: hca.CauseRemap}, {Range: got, Cause: hca.CauseUnmap}}, drain(f))
	require.Equal(t, hca.MemOwned, m.Watch(got).Kind)
	require.Equal(t, hca.MemUnknown, m.Watch(src).Kind)

	// A failing one: too long for any address space.
	_, err = m.Mremap(dst, 1<<60, unix.MREMAP_MAYMOVE)
	require.ErrorIs(t, err, unix.EINVAL)
	require.Equal(t, hca.MemOwned, m.Watch(got).Kind)
	require.Zero(t, m.own.used)

	// The old mapping stays, empty.
	kept, err := m.Remap(got, got.Len, unix.MREMAP_MAYMOVE|unix.MREMAP_DONTUNMAP, 0)
	require.NoError(t, err)
	require.Equal(t, hca.MemOwned, m.Watch(kept).Kind)
	require.Equal(t, hca.MemOwned, m.Watch(got).Kind)
	for _, r := range []hca.Range{kept, got, {Addr: src.Addr + src.Len, Len: uint64(63 * n)}} {
		require.NoError(t, m.Unmap(r))
	}
}

func TestCalls_MapFixed(t *testing.T) {
	m := explicit(t)
	rw, anon := unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS
	r, err := m.Map(hca.Range{Len: 4 * pageSize}, rw, anon, -1, 0)
	require.NoError(t, err)
	f, err := m.Subscribe(nil)
	require.NoError(t, err)
	defer f.Close()
	half := hca.Range{Addr: r.Addr, Len: 2 * pageSize}
	got, err := m.Map(half, rw, anon|unix.MAP_FIXED, -1, 0)
	require.NoError(t, err)
	require.Equal(t, half, got)
	require.Equal(t, []hca.Event{{Range: half, Cause: hca.CauseUnmap}}, drain(f))
	require.Equal(t, hca.MemOwned, m.Watch(r).Kind)
	_, err = m.Map(half, rw, anon|unix.MAP_FIXED_NOREPLACE, -1, 0)
	require.ErrorIs(t, err, unix.EEXIST)
	require.Empty(t, drain(f), "it takes nothing away")
	_, err = m.Map(half, rw, unix.MAP_PRIVATE|unix.MAP_FIXED, -1, 0)
	require.ErrorIs(t, err, unix.EBADF)
	require.Equal(t, hca.MemUnknown, m.Watch(half).Kind, "a call that failed may have taken it first")
	require.Equal(t, hca.MemOwned, m.Watch(hca.Range{Addr: half.End(), Len: half.Len}).Kind)
	require.NoError(t, m.Unmap(r))

	_, err = m.Mmap(-1, 0, 0, rw, anon)
	require.ErrorIs(t, err, hca.ErrInvalid)
	_, err = m.Mmap(-1, 0, 1, rw, anon|unix.MAP_FIXED)
	require.ErrorIs(t, err, hca.ErrInvalid)
}

// The other side of the contract, and why unknown memory is not kept: without
// a kernel source nobody tells of a raw munmap.
func TestExplicitDoesNotSee_RawMunmap(t *testing.T) {
	m := explicit(t)
	f, err := m.Subscribe(nil)
	require.NoError(t, err)
	defer f.Close()
	addr, err := rawMmap(0, uintptr(pageSize), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_ANONYMOUS, -1, 0)
	require.NoError(t, err)
	require.Equal(t, hca.UnkeptNoSource, m.Watch(hca.Range{Addr: addr, Len: pageSize}).Why)
	require.True(t, m.UnderWay(1), "no probe, no proof")
	require.NoError(t, rawMunmap(addr, uintptr(pageSize)))
	require.Empty(t, drain(f))
}

// Whoever unmaps owned memory unannounced breaks the contract, and nobody tells.
// But when the monitor maps at that place again it knows.
func TestCalls_BrokenContractIsFoundLate(t *testing.T) {
	m := explicit(t)
	rw, anon := unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS
	r, err := m.Map(hca.Range{Len: 4 * pageSize}, rw, anon, -1, 0)
	require.NoError(t, err)
	f, err := m.Subscribe(nil)
	require.NoError(t, err)
	defer f.Close()
	half := hca.Range{Addr: r.Addr, Len: 2 * pageSize}
	word := m.Watch(half).Counter
	was := word.Load()
	require.NoError(t, rawMunmap(half.Addr, uintptr(half.Len)))
	require.Empty(t, drain(f))
	got, err := m.Map(half, rw, anon|unix.MAP_FIXED_NOREPLACE, -1, 0) // as if the kernel had chosen it
	require.NoError(t, err)
	require.Equal(t, half, got)
	require.Equal(t, []hca.Event{{Range: half, Cause: hca.CauseUnmap}}, drain(f))
	require.Equal(t, was+hca.CounterStep, word.Load())
	require.Equal(t, hca.MemOwned, m.Watch(r).Kind)

	// The same by a mapping that moves there.
	src, err := m.Map(hca.Range{Len: 2 * pageSize}, rw, anon, -1, 0)
	require.NoError(t, err)
	require.NoError(t, rawMunmap(half.Addr, uintptr(half.Len)))
	_, err = m.Remap(src, src.Len, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, half.Addr)
	require.NoError(t, err)
	require.Contains(t, drain(f), hca.Event{Range: half, Cause: hca.CauseUnmap})
	require.Equal(t, hca.MemOwned, m.Watch(r).Kind)
	require.NoError(t, m.Unmap(r))
}

func TestExplicitExercise(t *testing.T) {
	m := explicit(t)
	f, err := m.Subscribe(nil)
	require.NoError(t, err)
	r, err := m.Exercise()
	require.NoError(t, err)
	require.Equal(t, []hca.Event{{Range: r, Cause: hca.CauseUnmap}}, drain(f))
	require.NoError(t, f.Close())
	require.NoError(t, m.Close())
	_, err = m.Exercise()
	require.ErrorIs(t, err, hca.ErrClosed)
}

// What the kernel refuses at sight, or has nothing to do for, is announced to
// nobody, and least of all as everything.
func TestCalls_NothingIsAnnouncedForNothing(t *testing.T) {
	m := explicit(t)
	b, err := m.Mmap(-1, 0, int(4*pageSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	f, err := m.Subscribe(nil)
	require.NoError(t, err)
	defer f.Close()
	require.ErrorIs(t, m.Munmap(b[:0]), unix.EINVAL)
	require.ErrorIs(t, m.Munmap(b[1:]), unix.EINVAL)
	require.NoError(t, m.Madvise(b[:0], unix.MADV_DONTNEED))
	_, err = m.Mremap(b[:0], int(pageSize), 0)
	require.Error(t, err, "private memory cannot be duplicated")
	require.Empty(t, drain(f))
	require.Equal(t, hca.MemOwned, m.Watch(hca.RangeOf(b)).Kind)
	// Growing in place is refused: the mapping is as it was, and so is its kind.
	_, err = m.Map(hca.Range{Addr: hca.RangeOf(b).End(), Len: pageSize}, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE, -1, 0)
	if err != nil {
		require.ErrorIs(t, err, unix.EEXIST) // somebody is there already, as well
	}
	_, err = m.Mremap(b, int(8*pageSize), 0)
	require.ErrorIs(t, err, unix.ENOMEM)
	require.Equal(t, hca.MemOwned, m.Watch(hca.RangeOf(b)).Kind)
	require.NoError(t, m.Munmap(b))
}

// Memory that a remap which then failed may have taken first is owned no more.
func TestCalls_FailedRemapOntoOwned(t *testing.T) {
	m := explicit(t)
	rw, anon := unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS
	src, err := m.Map(hca.Range{Len: 4 * pageSize}, rw, anon, -1, 0)
	require.NoError(t, err)
	dst, err := m.Map(hca.Range{Len: 4 * pageSize}, rw, anon, -1, 0)
	require.NoError(t, err)
	_, err = m.Remap(src, src.Len, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, dst.Addr+1) // not a page
	require.Error(t, err)
	require.Equal(t, hca.MemUnknown, m.Watch(dst).Kind)
	require.Equal(t, hca.MemUnknown, m.Watch(src).Kind)
	require.NoError(t, m.Unmap(src))
	require.NoError(t, m.Unmap(dst))
}
