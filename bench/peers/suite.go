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

// suitePackages are what the programs in c need of another suite: the peers, and
// the C library that they were built with. Nothing is installed: they are unpacked
// beside each other.
func suitePackages() []string {
	all := []string{"libc6"}
	for _, p := range peers {
		all = append(all, p.runtime, p.install)
	}
	return all
}

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// suiteFiles are the packages of another suite of Debian, unpacked.
type suiteFiles struct {
	suite, include, libs, loader string
}

// openSuite fetches the packages, if that was not done before: what was downloaded
// is used until its folder is removed.
func openSuite(ctx context.Context, suite string) (s suiteFiles, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return s, err
	}
	tree := filepath.Join(cache, "holdfast-peers", suite)
	s = suiteFiles{suite: suite, include: filepath.Join(tree, "usr/include")}
	for _, p := range peers {
		if _, err := os.Stat(filepath.Join(s.include, p.header)); err != nil {
			if err := fetch(ctx, suite, tree); err != nil {
				return s, err
			}
			break
		}
	}
	loaders, err := filepath.Glob(filepath.Join(tree, "usr/lib/*/ld-linux*.so.*"))
	if err != nil || len(loaders) != 1 {
		return s, fmt.Errorf("%s: no loader in its usr/lib: %v", tree, loaders)
	}
	s.loader, s.libs = loaders[0], filepath.Dir(loaders[0])
	return s, nil
}

// here links a program to run with the suite's loader and these libraries where
// they lie.
func (s suiteFiles) here() []string {
	return []string{"-Wl,-rpath," + s.libs, "-Wl,--dynamic-linker=" + s.loader}
}

// elsewhere links it to run where the suite's C library is the system's, with the
// peer's libraries in the folder that it lies in. That they are looked for
// there for each other too takes the old kind of tag.
func (s suiteFiles) elsewhere() []string {
	return []string{"-Wl,--disable-new-dtags,-rpath,$ORIGIN"}
}

// compile makes the program of a peer of the suite.
func (s suiteFiles) compile(ctx context.Context, p peer, dir, sources string, link []string) *contender {
	c := peerAs(p.name+"-"+s.suite, filepath.Join(dir, p.name+"-"+s.suite))
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		c.command, c.absent = nil, "no gcc; apt install gcc"
		return c
	}
	args := []string{"-I" + s.include, filepath.Join(sources, p.source), "-L" + s.libs, "-Wl,--allow-shlib-undefined"}
	c.compile(ctx, gcc, append(append(args, link...), p.libs...))
	return c
}

// suitePeers are the peers of another suite of Debian as contenders. Those that
// cannot be had, or not run here, are absent.
func suitePeers(ctx context.Context, suite, dir, sources string) (all []*contender) {
	s, err := openSuite(ctx, suite)
	for _, p := range peers {
		c := peerAs(p.name+"-"+suite, "")
		if err != nil {
			c.command, c.absent = nil, err.Error()
		} else if p.rdma {
			c.command, c.absent = nil, "runs beside its own suite's rdma-core only; -programs builds it for a computer that has it"
		} else {
			c = s.compile(ctx, p, dir, sources, s.here())
			c.ask(ctx)
		}
		all = append(all, c)
	}
	return all
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
	if err := apt(append([]string{"download"}, suitePackages()...)...); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(work, "archives", "*.deb"))
	if err != nil || len(debs) != len(suitePackages()) {
		return fmt.Errorf("apt-get downloaded %d packages, not %d", len(debs), len(suitePackages()))
	}
	for _, deb := range debs {
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", deb, filepath.Join(work, "tree")).CombinedOutput(); err != nil {
			return fmt.Errorf("dpkg-deb -x %s: %v: %s", filepath.Base(deb), err, lastLine(out))
		}
	}
	if err := os.RemoveAll(tree); err != nil { // of a version that fetched less
		return err
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
