package main

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// buildPrograms builds the peers' programs for another computer, and names them;
// there they take part with -also. Those of this system's packages need the same
// packages there. Those of -suite need that suite's C library, or a newer one, and
// the libraries of the peer, which are put beside them.
func buildPrograms(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	if err := os.MkdirAll(o.programs, 0o755); err != nil {
		return err
	}
	_, sources, remove, err := workFolder()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	var all []*contender
	for _, p := range peers {
		all = append(all, p.compile(ctx, o.programs, sources))
	}
	if o.suite != "" {
		s, err := openSuite(ctx, o.suite)
		if err != nil {
			return err
		}
		for _, p := range peers {
			c := s.compile(ctx, p, o.programs, sources, s.elsewhere())
			if c.command != nil && c.failed == nil {
				c.failed = s.bring(c.command[0], o.programs, map[string]bool{})
			}
			all = append(all, c)
		}
	}
	for _, c := range all {
		switch {
		case c.failed != nil:
			err = errors.Join(err, c.failed)
		case c.absent != "":
			fmt.Fprintf(stderr, "%s is absent: %s\n", c.name, c.absent)
		default:
			fmt.Fprintln(stdout, c.command[0])
		}
	}
	return err
}

// bring copies into dir what of the suite's libraries the file links, and they
// in turn, but not the C library, which belongs to the computer where it runs.
// seen are those that are done.
func (s suiteFiles) bring(file, dir string, seen map[string]bool) error {
	f, err := elf.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	names, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, name := range names {
		if seen[name] || name == "libc.so.6" || name == "libm.so.6" || strings.HasPrefix(name, "ld-linux") {
			continue
		}
		seen[name] = true
		to := filepath.Join(dir, name)
		b, err := os.ReadFile(filepath.Join(s.libs, name))
		if errors.Is(err, os.ErrNotExist) { // of a package that was not fetched
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(to, b, 0o755); err != nil {
			return err
		}
		if err := s.bring(to, dir, seen); err != nil {
			return err
		}
	}
	return nil
}
