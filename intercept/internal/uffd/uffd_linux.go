//go:build linux && (amd64 || arm64 || riscv64 || loong64)

package uffd

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Supported says that this system and processor have the calls at all.
const Supported = true

// Open makes a descriptor, closed on exec and never blocking (poll answers an
// error on one that blocks). Errors are those of userfaultfd(2): ENOSYS where
// the kernel was built without it, EPERM where a seccomp filter or the lack of
// privilege forbids it.
func Open(flags int) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, uintptr(unix.O_CLOEXEC|unix.O_NONBLOCK|flags), 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// Enable is UFFDIO_API: it asks for features. EINVAL: the kernel does not know
// one of them.
func Enable(fd int, features uint64) error {
	arg := apiArg{api: API, features: features}
	return ioctl(fd, cmdAPI, unsafe.Pointer(&arg))
}

// Register is UFFDIO_REGISTER in write-protect mode. Nothing is write
// protected, so nothing ever faults; what comes of it is events. Start and
// end are page aligned; the mappings are split there. EBUSY: a mapping belongs
// to another userfaultfd. EPERM: a shared mapping that cannot become writable.
// EINVAL: nothing mapped, or a mapping that cannot be watched.
func Register(fd int, start, end uint64) error {
	arg := registerArg{rangeArg: rangeArg{start, end - start}, mode: modeWP}
	return ioctl(fd, cmdRegister, unsafe.Pointer(&arg))
}

// Unregister is UFFDIO_UNREGISTER.
func Unregister(fd int, start, end uint64) error {
	arg := rangeArg{start, end - start}
	return ioctl(fd, cmdUnregister, unsafe.Pointer(&arg))
}

// emptyRange is the argument of Changing. The kernel reads it and does not
// write it.
var emptyRange writeProtectArg

// Changing reports whether an event of the descriptor is under way: raised
// before a mapping goes or a discard begins, and lowered after the event was
// read. It is UFFDIO_WRITEPROTECT with an empty range: the kernel answers
// EAGAIN while its mmap_changing is raised, before it looks at the range, and
// EINVAL for the range otherwise. Any other answer (a closed descriptor)
// proves nothing and counts as under way.
//
// It is a raw system call: it takes no lock in the kernel and returns at once
// (0.2 us), so the Go scheduler need not know of it.
func Changing(fd int) bool {
	_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), cmdWriteProtect, uintptr(unsafe.Pointer(&emptyRange)))
	return errno != unix.EINVAL
}

// Scanner asks which pages of a range are armed. One goroutine at a time.
type Scanner struct {
	pagemap int
	regions [2]PageRegion
}

// NewScanner makes a scanner on an open /proc/self/pagemap. It is never
// inlined, so that the scanner lies on the heap: the kernel is told the
// address of a field as a number, and a stack may move.
//
//go:noinline
func NewScanner(pagemap int) *Scanner { return &Scanner{pagemap: pagemap} }

// AllArmed reports whether every page of [start,end) lies in a mapping that is
// armed with write protection of the asynchronous kind, whether the page is
// present or not. It is the state at one instant: the kernel walks the range
// under one hold of the mmap lock as long as what it finds fits the two regions
// it is given, and a range that is armed throughout is one region. ENOTTY: a
// kernel before 6.7.
func (s *Scanner) AllArmed(start, end uint64) (bool, error) {
	n, err := s.scan(start, end, 0)
	return n == 1 && s.regions[0].Start == start && s.regions[0].End == end, err
}

// AnyArmed reports whether any page of [start,end) does. It is the state at
// one instant, too: the walk ends with the first page found.
func (s *Scanner) AnyArmed(start, end uint64) (bool, error) {
	n, err := s.scan(start, end, 1)
	return n > 0, err
}

// scan is PAGEMAP_SCAN for armed pages; it gives the number of regions.
func (s *Scanner) scan(start, end, maxPages uint64) (int, error) {
	arg := scanArg{
		start: start, end: end, maxPages: maxPages,
		vec: uint64(uintptr(unsafe.Pointer(&s.regions))), vecLen: uint64(len(s.regions)),
		categoryMask: pageWPAllowed, returnMask: pageWPAllowed,
	}
	arg.size = uint64(unsafe.Sizeof(arg))
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.pagemap), cmdPagemapScan, uintptr(unsafe.Pointer(&arg)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// Mapping is PROCMAP_QUERY on /proc/self/maps: the mapping that holds addr.
// ENOENT: none. ENOTTY: a kernel before 6.11.
func Mapping(maps int, addr uint64) (start, end uint64, err error) {
	m, err := Query(maps, addr)
	return m.Start, m.End, err
}

// Query is Mapping with more of what the kernel says.
func Query(maps int, addr uint64) (MappingInfo, error) {
	arg := procmapArg{addr: addr}
	arg.size = uint64(unsafe.Sizeof(arg))
	if err := ioctl(maps, cmdProcmapQuery, unsafe.Pointer(&arg)); err != nil {
		return MappingInfo{}, err
	}
	return MappingInfo{
		Start: arg.vmaStart, End: arg.vmaEnd,
		Kind:   MappingKind{Flags: arg.vmaFlags, Inode: arg.inode, Dev: unix.Mkdev(arg.devMajor, arg.devMinor)},
		Offset: arg.vmaOffset,
	}, nil
}

func ioctl(fd int, cmd uintptr, arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), cmd, uintptr(arg))
	if errno != 0 {
		return errno
	}
	return nil
}
