package verbs

import (
	"fmt"
	"log/slog"

	"example.com/holdfast/hca"
)

// Config says which adapter to open and how. The zero value opens the first
// adapter that has an active port.
type Config struct {
	// Name is the adapter's name as ibv_devices(1) prints it, "mlx5_0" or
	// "rxe0". Empty: the first one with an active port.
	Name string
	// Port is the port, from 1 on. 0: the first active one.
	Port int
	// GIDIndex is the entry of the port's address table that queue pairs use
	// on RoCE. nil: the best one: RoCE v2 before v1, and of these an IPv4
	// address before others.
	GIDIndex *int
	// Workers is how many calls of PostRegister and PostAdvise run at the same
	// time. 0: 2.
	Workers int
	// TrustODP uses the on-demand paging of an adapter that moved bytes to
	// wrong places when it was tried, as Soft-RoCE of Linux 7.2 does. Only
	// transfers that begin at the beginning of a page at both ends, over a
	// path whose MTU is a whole page, are right then. For tests and
	// measurements that know this and check every byte. false: such an adapter
	// is opened without on-demand paging.
	TrustODP bool
	// Log receives a line for every asynchronous event of the adapter. nil:
	// events are only counted.
	Log *slog.Logger
}

func (c *Config) validate() error {
	bad := func(field, why string) error {
		return &hca.OpError{Op: "open", Device: c.Name, Detail: "Config." + field + " " + why, Err: hca.ErrInvalid}
	}
	switch {
	case c.Port < 0 || c.Port > 255:
		return bad("Port", fmt.Sprintf("is %d: ports go from 1 to 255", c.Port))
	case c.GIDIndex != nil && (*c.GIDIndex < 0 || *c.GIDIndex > 255):
		return bad("GIDIndex", fmt.Sprintf("is %d: it goes from 0 to 255", *c.GIDIndex))
	case c.Workers < 0 || c.Workers > 64:
		return bad("Workers", fmt.Sprintf("is %d: at most 64", c.Workers))
	}
	return nil
}

// Adapter is what Open answers: an hca.Device, and what only real adapters
// have beyond it.
type Adapter interface {
	hca.Reregisterer
	// Events tells how often each kind of asynchronous event came since the
	// device was opened, in the order of their numbers in enum ibv_event_type;
	// kinds that never came are left out.
	Events() []EventCount
}

// EventCount is how often one kind of asynchronous event came.
type EventCount struct {
	Name  string // "port active", "CQ error"; "event 99" for a kind that is not known
	Count uint64
}
