package main

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed c
var sources embed.FS

// peer is a cache that comes as a package with headers, and the C program in
// the folder c that drives it.
type peer struct {
	name    string
	source  string // in c
	header  string // is there if and only if the package is
	install string // Debian's name of the package
	runtime string // and of the one with the libraries
	libs    []string
	rdma    bool // links rdma-core, whose libraries and drivers are a system's own
}

var peers = []peer{
	{name: "ucx", source: "ucx.c", header: "ucs/memory/rcache.h", install: "libucx-dev", runtime: "libucx0", libs: []string{"-lucp", "-lucs", "-lucm"}},
	// -rdynamic: the program's functions come before those of the libraries.
	{name: "libfabric", source: "libfabric.c", header: "rdma/fi_domain.h", install: "libfabric-dev", runtime: "libfabric1", libs: []string{"-rdynamic", "-lfabric", "-ldl"}, rdma: true},
}

// peerAs is a contender of another's: a program like those in the folder c.
func peerAs(name, program string) *contender {
	c := newContender(name, name, program)
	c.does = func(j job) bool { return j.churn != churnSame && j.churn != churnOther }
	return c
}

// build compiles the peer's program into dir and asks it who it is. A peer whose
// package is not there is absent, not failed.
func (p peer) build(ctx context.Context, dir, sources string) *contender {
	c := p.compile(ctx, dir, sources)
	c.ask(ctx)
	return c
}

func (p peer) compile(ctx context.Context, dir, sources string) *contender {
	c := peerAs(p.name, filepath.Join(dir, p.name))
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		c.command, c.absent = nil, "no gcc; apt install gcc "+p.install
		return c
	}
	look := exec.CommandContext(ctx, gcc, "-E", "-include", "unistd.h", "-include", p.header, "-x", "c", os.DevNull)
	if err := look.Run(); err != nil {
		c.command, c.absent = nil, fmt.Sprintf("<%s> is not installed; apt install %s", p.header, p.install)
		return c
	}
	c.compile(ctx, gcc, append([]string{filepath.Join(sources, p.source)}, p.libs...))
	return c
}

// compile makes the contender's program.
func (c *contender) compile(ctx context.Context, gcc string, args []string) {
	var errs bytes.Buffer
	args = append([]string{"-O2", "-Wall", "-Wextra", "-o", c.command[0]}, args...)
	cc := exec.CommandContext(ctx, gcc, append(args, "-lpthread")...)
	cc.Stderr = &errs
	if err := cc.Run(); err != nil {
		c.failed = fmt.Errorf("%s: does not build against the version installed: %v: %s", c.name, err, firstError(errs.String()))
	}
}

// firstError is the line of a compiler's output that says what is wrong.
func firstError(out string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(line, "error:") {
			return strings.TrimSpace(line)
		}
	}
	return strings.TrimSpace(out)
}
