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
	libs    []string
}

var peers = []peer{
	{name: "ucx", source: "ucx.c", header: "ucs/memory/rcache.h", install: "libucx-dev", libs: []string{"-lucp", "-lucs", "-lucm"}},
	{name: "libfabric", source: "libfabric.c", header: "rdma/fi_domain.h", install: "libfabric-dev", libs: []string{"-lfabric"}},
}

// peerAs is a contender of another's: a program like those in the folder c.
func peerAs(name, program string) *contender {
	c := newContender(name, name, program)
	c.does = func(j job) bool { return j.churn != churnSame && j.churn != churnOther }
	return c
}

// build compiles the peer's program into dir. A peer whose package is not there
// is absent, not failed.
func (p peer) build(ctx context.Context, dir string) *contender {
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
	c.compile(ctx, gcc, append([]string{filepath.Join(dir, "c", p.source)}, p.libs...))
	return c
}

// compile makes the contender's program and asks it who it is.
func (c *contender) compile(ctx context.Context, gcc string, args []string) {
	var errs bytes.Buffer
	args = append([]string{"-O2", "-Wall", "-Wextra", "-o", c.command[0]}, args...)
	cc := exec.CommandContext(ctx, gcc, append(args, "-lpthread")...)
	cc.Stderr = &errs
	if err := cc.Run(); err != nil {
		c.failed = fmt.Errorf("%s: does not build against the version installed: %v: %s", c.name, err, firstError(errs.String()))
		return
	}
	c.ask(ctx)
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
