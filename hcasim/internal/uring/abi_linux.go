package uring

// The structs and numbers of <linux/io_uring.h>. abi_linux_test.go checks them
// against the kernel's header where there is one.

const (
	opReadFixed  = 4  // IORING_OP_READ_FIXED
	opWriteFixed = 5  // IORING_OP_WRITE_FIXED
	opRead       = 22 // IORING_OP_READ
	opWrite      = 23 // IORING_OP_WRITE

	sqeLink = 1 << 2 // IOSQE_IO_LINK

	offSQRing = 0x00000000 // IORING_OFF_SQ_RING
	offSQEs   = 0x10000000 // IORING_OFF_SQES

	enterGetEvents = 1 << 0 // IORING_ENTER_GETEVENTS

	featSingleMmap = 1 << 0  // IORING_FEAT_SINGLE_MMAP, 5.4
	featNoDrop     = 1 << 1  // IORING_FEAT_NODROP, 5.5
	featRsrcTags   = 1 << 10 // IORING_FEAT_RSRC_TAGS, 5.13

	registerBuffers2      = 15 // IORING_REGISTER_BUFFERS2
	registerBuffersUpdate = 16 // IORING_REGISTER_BUFFERS_UPDATE

	rsrcRegisterSparse = 1 << 0 // IORING_RSRC_REGISTER_SPARSE, 5.19
)

// sqe is struct io_uring_sqe.
type sqe struct {
	opcode      uint8
	flags       uint8
	ioprio      uint16
	fd          int32
	off         uint64
	addr        uint64
	len         uint32
	rwFlags     uint32
	userData    uint64
	bufIndex    uint16
	personality uint16
	spliceFD    int32
	addr3       uint64
	pad         uint64
}

// cqe is struct io_uring_cqe.
type cqe struct {
	userData uint64
	res      int32
	flags    uint32
}

// sqOffsets is struct io_sqring_offsets.
type sqOffsets struct {
	head, tail, ringMask, ringEntries, flags, dropped, array, resv1 uint32
	userAddr                                                        uint64
}

// cqOffsets is struct io_cqring_offsets.
type cqOffsets struct {
	head, tail, ringMask, ringEntries, overflow, cqes, flags, resv1 uint32
	userAddr                                                        uint64
}

// params is struct io_uring_params.
type params struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFD uint32
	resv                                                                   [3]uint32
	sqOff                                                                  sqOffsets
	cqOff                                                                  cqOffsets
}

// rsrcRegister is struct io_uring_rsrc_register.
type rsrcRegister struct {
	nr    uint32
	flags uint32
	resv2 uint64
	data  uint64
	tags  uint64
}

// rsrcUpdate2 is struct io_uring_rsrc_update2.
type rsrcUpdate2 struct {
	offset uint32
	resv   uint32
	data   uint64
	tags   uint64
	nr     uint32
	resv2  uint32
}

// iovec is struct iovec with the address as a number: it may name memory that
// is not Go's, or not there.
type iovec struct {
	base uint64
	len  uint64
}
