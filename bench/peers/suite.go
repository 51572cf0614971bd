package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// suitePackages are what ucx.c needs of another suite: UCX, and the C library
// that it was built with. Nothing is installed: they are unpacked beside each
// other, and the program is linked to run with that loader and these libraries.
var suitePackages = []string{"libucx0", "libucx-dev", "libc6"}

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// suiteUCX is the UCX of another suite of Debian as a contender. One that cannot be
// had is absent. What was downloaded is used until its folder is removed.
func suiteUCX(ctx context.Context, suite, dir string) *contender {
	c := peerAs("ucx-"+suite, filepath.Join(dir, "ucx-"+suite))
	absent := func(err error) *contender {
		c.command, c.absent = nil, err.Error()
		return c
	}
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return absent(fmt.Errorf("no gcc; apt install gcc"))
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return absent(err)
	}
	tree := filepath.Join(cache, "holdfast-peers", suite)
	if _, err := os.Stat(tree); err != nil {
		if err := fetch(ctx, suite, tree); err != nil {
			return absent(err)
		}
	}
	loaders, err := filepath.Glob(filepath.Join(tree, "usr/lib/*/ld-linux*.so.*"))
	if err != nil || len(loaders) != 1 {
		return absent(fmt.Errorf("%s: no loader in its usr/lib: %v", tree, loaders))
	}
	libs := filepath.Dir(loaders[0])
	c.compile(ctx, gcc, []string{"-I" + filepath.Join(tree, "usr/include"), filepath.Join(dir, "c", "ucx.c"),
		"-L" + libs, "-Wl,--allow-shlib-undefined", "-Wl,-rpath," + libs, "-Wl,--dynamic-linker=" + loaders[0],
		"-lucp", "-lucs", "-lucm"})
	return c
}

// fetch downloads and unpacks the packages into tree, by apt-get, with lists and a
// package state of its own, so that the system's are not touched.
func fetch(ctx context.Context, suite, tree string) (err error) {
	for _, program := range []string{"apt-get", "dpkg", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("no %s to fetch the packages of Debian %s with", program, suite)
		}
	}
	mirror, err := mirror()
	if err != nil {
		return err
	}
	arch, err := exec.CommandContext(ctx, "dpkg", "--print-architecture").Output()
	if err != nil {
		return fmt.Errorf("dpkg --print-architecture: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(tree), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(tree), suite+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	for _, d := range []string{"lists/partial", "archives/partial", "tree"} {
		if err := os.MkdirAll(filepath.Join(work, d), 0o755); err != nil {
			return err
		}
	}
	source := fmt.Sprintf("deb [arch=%s signed-by=%s] %s %s main\n", bytes.TrimSpace(arch), keyring, mirror, suite)
	for name, text := range map[string]string{"status": "", "sources.list": source} {
		if err := os.WriteFile(filepath.Join(work, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	apt := func(args ...string) error {
		o := []string{"-qq"}
		for k, v := range map[string]string{
			"Dir::Etc::SourceList": work + "/sources.list", "Dir::Etc::SourceParts": "-",
			"Dir::State::Lists": work + "/lists", "Dir::State::Status": work + "/status",
			"Dir::Cache::Archives": work + "/archives", "Dir::Cache::pkgcache": "", "Dir::Cache::srcpkgcache": "",
			"APT::Sandbox::User": "", "Debug::NoLocking": "true",
		} {
			if k == "APT::Sandbox::User" && os.Geteuid() == 0 {
				v = "root"
			}
			o = append(o, "-o", k+"="+v)
		}
		cmd := exec.CommandContext(ctx, "apt-get", append(o, args...)...)
		cmd.Dir = filepath.Join(work, "archives")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s of Debian %s from %s: %v: %s", args[0], suite, mirror, err, lastLine(out))
		}
		return nil
	}
	if err := apt("update"); err != nil {
		return err
	}
	if err := apt(append([]string{"download"}, suitePackages...)...); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(work, "archives", "*.deb"))
	if err != nil || len(debs) != len(suitePackages) {
		return fmt.Errorf("apt-get downloaded %d packages, not %d", len(debs), len(suitePackages))
	}
	for _, deb := range debs {
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", deb, filepath.Join(work, "tree")).CombinedOutput(); err != nil {
			return fmt.Errorf("dpkg-deb -x %s: %v: %s", filepath.Base(deb), err, lastLine(out))
		}
	}
	return os.Rename(filepath.Join(work, "tree"), tree)
}

// mirror is the first place that this system takes its own packages from.
func mirror() (string, error) {
	for _, name := range []string{"/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"} {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			for _, word := range strings.Fields(line) {
				if strings.HasPrefix(line, "#") || !strings.HasPrefix(word, "http") {
					continue
				}
				return word, nil
			}
		}
	}
	return "", fmt.Errorf("no Debian package source in /etc/apt")
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}
