//go:build cgo

package intercept

import "golang.org/x/sys/unix"

func init() { sysPoll = append(sysPoll, unix.SYS_POLL) }
