package verbs

import (
	"errors"
	"fmt"
	"syscall"

	"example.com/holdfast/hca"
)

// callError is a libibverbs call that failed: the kind of failure, the call
// and its errno. errors.Is finds both the kind and the errno.
type callError struct {
	kind  error
	call  string
	errno syscall.Errno
}

func (e *callError) Error() string {
	return fmt.Sprintf("%v (%s: %s, %v)", e.kind, e.call, errnoName(e.errno), e.errno)
}

func (e *callError) Unwrap() []error { return []error{e.kind, e.errno} }

// errnoName gives the name of the errnos that libibverbs and the kernel's RDMA
// code answer with, and else the number.
func errnoName(e syscall.Errno) string {
	switch e {
	case syscall.EPERM:
		return "EPERM"
	case syscall.ENOENT:
		return "ENOENT"
	case syscall.EINTR:
		return "EINTR"
	case syscall.EIO:
		return "EIO"
	case syscall.EAGAIN:
		return "EAGAIN"
	case syscall.ENOMEM:
		return "ENOMEM"
	case syscall.EACCES:
		return "EACCES"
	case syscall.EFAULT:
		return "EFAULT"
	case syscall.EBUSY:
		return "EBUSY"
	case syscall.ENODEV:
		return "ENODEV"
	case syscall.EINVAL:
		return "EINVAL"
	case syscall.EMFILE:
		return "EMFILE"
	case syscall.ENOSPC:
		return "ENOSPC"
	case syscall.EOVERFLOW:
		return "EOVERFLOW"
	case syscall.ENOSYS:
		return "ENOSYS"
	case syscall.EOPNOTSUPP:
		return "EOPNOTSUPP"
	case syscall.ENETUNREACH:
		return "ENETUNREACH"
	case syscall.ETIMEDOUT:
		return "ETIMEDOUT"
	}
	return fmt.Sprintf("errno %d", int(e))
}

// kindOf is what an errno means where a call gives it no meaning of its own.
// What fits none of the kinds stays the errno alone.
func kindOf(e syscall.Errno) error {
	switch e {
	case syscall.EINVAL, syscall.ENOENT, syscall.EOVERFLOW:
		return hca.ErrInvalid
	case syscall.EFAULT:
		return hca.ErrBadAddress
	case syscall.ENOMEM:
		return hca.ErrNoMemory
	case syscall.EPERM, syscall.EACCES:
		return hca.ErrAccess
	case syscall.ENOSPC:
		return hca.ErrNoKeys
	case syscall.EOPNOTSUPP, syscall.ENOSYS:
		return hca.ErrNotSupported
	case syscall.EAGAIN, syscall.EINTR:
		return hca.ErrAgain
	case syscall.EBUSY:
		return hca.ErrBusy
	}
	return errors.New("the call was refused")
}

// callFailed makes the error of a call that answered minus an errno. kind nil:
// what the errno means in general.
func callFailed(call string, r int, kind error) *callError {
	e := syscall.Errno(-r)
	if kind == nil {
		kind = kindOf(e)
	}
	return &callError{kind: kind, call: call, errno: e}
}
