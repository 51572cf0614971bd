//go:build linux && cgo && verbs

package verbs

// #include "glue.h"
import "C"

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"example.com/holdfast/hca"
)

// port is the port that queue pairs use and what its side of a connection is
// made of.
type port struct {
	number   int
	lid      uint16
	mtu      uint8 // as enum ibv_mtu: 1 is 256 bytes, 5 is 4096
	maxMsg   uint64
	ethernet bool
	gidIndex int
	gid      [16]byte
	gidKind  string // "RoCE v2", "RoCE v1", "InfiniBand"
}

func (d *device) choosePort(cfg Config) (port, error) {
	n := cfg.Port
	if n == 0 {
		n = activePort(d.ctx)
	}
	if n == 0 {
		return port{}, d.refused("open", "no port is active", hca.ErrNotSupported)
	}
	var p C.struct_hf_port
	if r := C.hf_query_port(d.ctx, C.int(n), &p); r != 0 {
		return port{}, d.failed("open", "ibv_query_port", int(r))
	}
	if p.state != C.IBV_PORT_ACTIVE {
		return port{}, d.refused("open", fmt.Sprintf("port %d is not active", n), hca.ErrNotSupported)
	}
	out := port{number: n, lid: uint16(p.lid), mtu: uint8(p.mtu), maxMsg: uint64(p.max_msg), ethernet: p.ethernet != 0}
	best := -1
	for i := range int(p.gids) {
		var g C.struct_hf_gid
		if cfg.GIDIndex != nil && i != *cfg.GIDIndex {
			continue
		}
		if C.hf_query_gid(d.ctx, C.int(n), C.int(i), &g) != 0 {
			continue // the table has holes
		}
		raw := *(*[16]byte)(unsafe.Pointer(&g.raw))
		if s := gidScore(raw, int(g._type)); s > best {
			best, out.gidIndex, out.gid = s, i, raw
			out.gidKind = [...]string{"InfiniBand", "RoCE v1", "RoCE v2"}[min(int(g._type), 2)]
		}
	}
	if best < 0 && (out.ethernet || cfg.GIDIndex != nil) {
		return port{}, &hca.OpError{Op: "open", Device: d.attr.Name, Detail: fmt.Sprintf("port %d has no address to use", n),
			Err: hca.ErrNotSupported, Hint: "give its network device an IP address, or check Config.GIDIndex"}
	}
	return out, nil
}

// rnrNaks reads how often the adapter was told that a receiver was not ready:
// rcvd_rnr_err of Soft-RoCE, rnr_nak_retry_err of mlx5. 0 where it does not
// count that.
func (d *device) rnrNaks() uint64 {
	dir := filepath.Join("/sys/class/infiniband", d.attr.Name, "ports", strconv.Itoa(d.port.number), "hw_counters")
	for _, name := range []string{"rcvd_rnr_err", "rnr_nak_retry_err"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue // another adapter's name
		}
		if n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil {
			return n
		}
	}
	return 0
}
