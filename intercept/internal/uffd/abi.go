// Package uffd holds what the kernel's headers say about userfaultfd,
// PROCMAP_QUERY and PAGEMAP_SCAN, and one typed function for each command that
// the monitor uses. It keeps no state.
//
// The numbers are those of the generic ioctl encoding (x86, arm64, riscv,
// loongarch). Those of userfaultfd.h are checked against the header that gcc
// finds when package reader is built; the others are newer than many
// distributions' headers and are checked against their formula by the test.
package uffd

// The ioctl numbers: _IOC(direction, type, number, size of the argument).
const (
	cmdAPI          = 0xc018aa3f // UFFDIO_API
	cmdRegister     = 0xc020aa00 // UFFDIO_REGISTER
	cmdUnregister   = 0x8010aa01 // UFFDIO_UNREGISTER
	cmdWriteProtect = 0xc018aa06 // UFFDIO_WRITEPROTECT
	cmdPagemapScan  = 0xc0606610 // PAGEMAP_SCAN, Linux 6.7
	cmdProcmapQuery = 0xc0686611 // PROCMAP_QUERY, Linux 6.11
)

// API is the version in struct uffdio_api.
const API = 0xaa

// UserModeOnly is the flag of userfaultfd(2) that makes it work without
// privilege (Linux 5.11). Faults raised by the kernel itself are then not
// handled, which costs nothing here: no fault is ever raised.
const UserModeOnly = 1

// Features of userfaultfd that the monitor asks for.
const (
	FeatureEventRemap  = 1 << 2  // mremap is reported (4.11)
	FeatureEventRemove = 1 << 3  // discarding advices of madvise are reported (4.11)
	FeatureEventUnmap  = 1 << 6  // munmap and what works like it is reported (4.11)
	FeatureWPUnpop     = 1 << 13 // write protection of pages that are not there (6.4)
	FeatureWPAsync     = 1 << 15 // any mapping may be watched, and no fault is raised (6.7)

	// Features is all of them.
	Features = FeatureEventRemap | FeatureEventRemove | FeatureEventUnmap | FeatureWPUnpop | FeatureWPAsync
)

const (
	modeWP        = 1 << 1 // UFFDIO_REGISTER_MODE_WP
	pageWPAllowed = 1 << 0 // PAGE_IS_WPALLOWED
)

// MappingInfo is a mapping of this process.
type MappingInfo struct {
	Start, End uint64
	Kind       MappingKind
	Offset     uint64 // where Start lies in the file; 0 without one
}

// MappingKind is what two mappings that touch must have in common to be one.
// More is needed, of which the kernel tells nothing.
type MappingKind struct {
	Flags      uint64 // FlagRead and so on
	Inode, Dev uint64 // of the file; 0 without one
}

// Flags of a mapping, as PROCMAP_QUERY has them.
const (
	FlagRead = 1 << iota
	FlagWrite
	FlagExec
	FlagShared
)

// Continues reports whether n begins where m ends and may once have been one
// mapping with it.
func (m MappingInfo) Continues(n MappingInfo) bool {
	return m.End == n.Start && m.Kind == n.Kind && (m.Kind.Inode == 0 || n.Offset == m.Offset+m.End-m.Start)
}

type apiArg struct{ api, features, ioctls uint64 }

type rangeArg struct{ start, length uint64 }

type registerArg struct {
	rangeArg
	mode, ioctls uint64
}

type writeProtectArg struct {
	rangeArg
	mode uint64
}

// PageRegion is struct page_region: pages in a row that are alike.
type PageRegion struct{ Start, End, Categories uint64 }

type scanArg struct {
	size, flags         uint64
	start, end, walkEnd uint64
	vec, vecLen         uint64
	maxPages            uint64
	categoryInverted    uint64
	categoryMask        uint64
	categoryAnyof       uint64
	returnMask          uint64
}

type procmapArg struct {
	size, flags, addr     uint64
	vmaStart, vmaEnd      uint64
	vmaFlags, vmaPageSize uint64
	vmaOffset, inode      uint64
	devMajor, devMinor    uint32
	nameSize, buildIDSize uint32
	nameAddr, buildIDAddr uint64
}
