package intercept

import (
	"example.com/holdfast/hca"
	"example.com/holdfast/intercept/internal/source"
)

// Assemble makes a monitor on a kernel source that another package of this
// module started: see bpf.New. On an error the source is stopped.
func Assemble(cfg Config, parts source.Parts) (*Monitor, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		parts.Source.Stop()
		return nil, err
	}
	m := newMonitor(cfg)
	m.counter = parts.Counter
	m.source = parts.Source
	parts.Start(m.ringBell)
	m.start()
	err := m.selfTest()
	if err == nil {
		err = parts.Try(func(do func() error, r func() hca.Range, cause hca.Cause) error {
			c := m.newCursor()
			if err := do(); err != nil {
				return err
			}
			return m.expect(&c, r(), cause)
		})
	}
	if err != nil {
		m.shut()
		return nil, err
	}
	return m, nil
}

// SetLesser tells the monitor why no better source than its own was to be had,
// for [Monitor.Lesser] and [Monitor.String]: for packages that choose among
// sources. It must be called before the monitor is given to anybody else.
func (m *Monitor) SetLesser(why error) { m.lesser = why }
