package regcache

import (
	"fmt"
	"log/slog"
	"math"

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
	// registrations pin, counted like MaxRegions. 0: 1 GiB. Use
	// math.MaxUint64 for no limit. It means nothing under on-demand paging,
	// which pins nothing.
	MaxBytes uint64

	// Logger gets a line for what goes wrong where no caller can be told: a
	// deregistration in the background that failed. nil: nothing is logged;
	// Stats counts it all the same, and Close returns it.
	Logger *slog.Logger
}

// Defaults of Config.
const (
	DefaultMaxRegions        = 65536
	DefaultMaxBytes   uint64 = 1 << 30
)

// validate fills the defaults in and says what is wrong with which field.
func (cfg *Config) validate(info BackendInfo) error {
	if cfg.MaxRegions < 0 {
		return &hca.OpError{Op: "new cache", Detail: fmt.Sprintf("Config.MaxRegions is %d", cfg.MaxRegions),
			Err: hca.ErrInvalid, Hint: "0 asks for the default"}
	}
	if cfg.MaxRegions == 0 {
		cfg.MaxRegions = DefaultMaxRegions
		if info.MaxRegions > 0 && info.MaxRegions < cfg.MaxRegions {
			cfg.MaxRegions = info.MaxRegions
		}
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = DefaultMaxBytes
	}
	if info.Follows {
		cfg.MaxBytes = math.MaxUint64
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}
