package regcache

import (
	"fmt"
	"log/slog"
	"math"
	"time"

	"example.com/holdfast/hca"
)

// Config says how a cache behaves. The zero value is safe: with no Monitor
// only Go heap memory given to GetBytes is kept, because only of that memory
// the cache can know by itself that it does not go away.
type Config struct {
	// Monitor tells when memory goes away. nil: nobody does.
	Monitor Monitor

	// MaxRegions is the most registrations that are kept, those in use and
	// those dead but not yet deregistered counted. 0: 65536, or what the
	// backend can have if that is less. Negative is refused.
	MaxRegions int

	// MaxBytes is the most memory, in bytes of whole pages, that kept
	// registrations pin, counted like MaxRegions. 0: what the machine allows:
	// three quarters of RLIMIT_MEMLOCK if that binds, else a quarter of the
	// memory, divided by BackendInfo.Pins. Every cache takes that for itself:
	// the kernel charges locked memory to the user, so where several caches
	// or processes of one user pin, give each its share. Use math.MaxUint64 for no limit. It means nothing under on-demand
	// paging, which pins nothing.
	MaxBytes uint64

	// MaxMerge is how long, in bytes, a registration may get by merging
	// neighbours (merge.go), which then share a key. 0: 64 MiB. Less than two pages turns merging off.
	MaxMerge uint64

	// MaxIdle is how long a Region that nobody uses is kept. 0: for ever. It
	// is looked after by the sweep, so it is as exact as SweepEvery. Negative
	// is refused.
	MaxIdle time.Duration

	// SweepEvery is how often the cache compares what it keeps with
	// /proc/self/maps and drops what lies over memory that is not mapped any
	// more. Where the monitor tells of that, the sweep is a second net; under
	// on-demand paging it is the only thing that bounds what is kept. 0: 30 s.
	// Negative: never.
	SweepEvery time.Duration

	// SweepShare bounds the processor time of the sweep: after one that took t,
	// the next begins t/SweepShare later at the earliest. 0: 0.01. Not more
	// than 1, not negative.
	SweepShare float64

	// Logger gets a line for what goes wrong where no caller can be told: a
	// deregistration in the background that failed. At debug level, which is
	// asked for once, by New, it also gets one for each registration made and
	// dropped, with the reason, for each Region whose memory went away, and for
	// each that is used only once. A goroutine of its own writes the lines, so a
	// handler may block or call the cache, Close included. nil: nothing is logged;
	// Stats counts it all the same, and Close returns errors.
	Logger *slog.Logger

	// Where the limits come from, for String.
	regionsFrom, bytesFrom string
}

// Defaults of Config.
const (
	DefaultMaxRegions = 65536
	DefaultMaxMerge   = 64 << 20
	DefaultSweepEvery = 30 * time.Second
	DefaultSweepShare = 0.01
)

// validate fills the defaults in and says what is wrong with which field.
func (cfg *Config) validate(info BackendInfo) error {
	bad := func(field string, value any, hint string) error {
		return &hca.OpError{Op: "new cache", Detail: fmt.Sprintf("Config.%s is %v", field, value), Err: hca.ErrInvalid, Hint: hint}
	}
	switch {
	case cfg.MaxRegions < 0:
		return bad("MaxRegions", cfg.MaxRegions, "0 asks for the default")
	case cfg.MaxIdle < 0:
		return bad("MaxIdle", cfg.MaxIdle, "0 means for ever")
	case !(cfg.SweepShare >= 0 && cfg.SweepShare <= 1):
		return bad("SweepShare", cfg.SweepShare, "it is a share, 0 to 1; 0 asks for the default")
	}
	cfg.regionsFrom, cfg.bytesFrom = "Config", "Config"
	if cfg.MaxRegions == 0 {
		cfg.MaxRegions, cfg.regionsFrom = DefaultMaxRegions, "default"
		if info.MaxRegions > 0 && info.MaxRegions < cfg.MaxRegions {
			cfg.MaxRegions, cfg.regionsFrom = info.MaxRegions, "all that "+info.Name+" has"
		}
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes, cfg.bytesFrom = machineLimit()
		if info.Pins > 1 {
			cfg.MaxBytes /= uint64(info.Pins)
			cfg.bytesFrom += fmt.Sprintf(", divided among %d adapters", info.Pins)
		}
	}
	if info.Follows {
		cfg.MaxBytes, cfg.bytesFrom = math.MaxUint64, "nothing is pinned"
	}
	if cfg.MaxMerge == 0 {
		cfg.MaxMerge = DefaultMaxMerge
	}
	if cfg.SweepEvery == 0 {
		cfg.SweepEvery = DefaultSweepEvery
	}
	if cfg.SweepShare == 0 {
		cfg.SweepShare = DefaultSweepShare
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// String says what the cache keeps to and where each limit comes from. It is
// meant for the Config that Cache.Config answers with, which has no zeros left.
func (cfg Config) String() string {
	from := func(s string) string {
		if s == "" {
			return ""
		}
		return " (" + s + ")"
	}
	bytes := "no limit on bytes"
	if cfg.MaxBytes != math.MaxUint64 {
		bytes = hca.Bytes(cfg.MaxBytes).String() + " pinned"
	}
	idle := "for ever"
	if cfg.MaxIdle > 0 {
		idle = cfg.MaxIdle.String()
	}
	sweep := "no sweep"
	if cfg.SweepEvery > 0 {
		sweep = fmt.Sprintf("a sweep every %v on at most %.3g of a processor", cfg.SweepEvery, cfg.SweepShare)
	}
	return fmt.Sprintf("at most %d Regions%s, %s%s, idle ones kept %s; %s",
		cfg.MaxRegions, from(cfg.regionsFrom), bytes, from(cfg.bytesFrom), idle, sweep)
}
