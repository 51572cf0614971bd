//go:build linux && cgo && (amd64 || arm64 || riscv64 || loong64)

package intercept

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept/internal/reader"
	"example.com/holdfast/intercept/internal/ring"
	"example.com/holdfast/intercept/internal/uffd"
)

// UserfaultConfig makes a monitor that sees the end of any memory of this
// process, whoever unmaps it and however, through userfaultfd, beside explicit
// calls. It needs Linux 6.7 and cgo, and no privilege. Before it answers it
// has tried every descriptor with memory of its own.
//
// Errors: hca.ErrInvalid for a Config that makes no sense; hca.ErrAccess where
// a seccomp filter or a security module forbids it (Docker's default profile
// does); hca.ErrNotSupported where the kernel or the build lacks something, or
// events do not arrive; hca.ErrNoMemory where there are no descriptors or
// threads to be had. The text says what to do. Nothing is left behind.
func UserfaultConfig(cfg Config) (*Monitor, error) { return userfault(cfg, uffd.Features) }

// userfault is UserfaultConfig with the features to ask the kernel for, so
// that a test can make a source that delivers nothing.
func userfault(cfg Config, features uint64) (*Monitor, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m := newMonitor(cfg)
	k, err := openKernel(m, features)
	if err != nil {
		return nil, err
	}
	m.kernel, m.source = k, k
	k.cur = cursor{seen: k.ring, said: ring.New(1)}
	m.start()
	if err := m.selfTest(); err != nil {
		m.shut()
		return nil, err
	}
	return m, nil
}

func sourceError(detail string, kind error, hint string) error {
	return &hca.OpError{Op: "start userfaultfd monitor", Detail: detail, Err: kind, Hint: hint}
}

// openKernel opens everything and starts the thread.
func openKernel(m *Monitor, features uint64) (k *kernel, err error) {
	k = &kernel{strict: m.cfg.Strict, ring: ring.New(m.cfg.Ring), counter: m.counter, stats: &reader.Stats{}, maps: -1, pagemap: -1, stopFD: -1}
	defer func() {
		if err != nil {
			k.closeFiles()
			for _, fd := range k.fds {
				unix.Close(fd)
			}
		}
	}()
	for range m.cfg.Descriptors {
		fd, err := uffd.Open(uffd.UserModeOnly)
		if err != nil {
			return k, openError(err)
		}
		k.fds = append(k.fds, fd)
		if err := uffd.Enable(fd, features); err != nil {
			return k, sourceError(fmt.Sprintf("the kernel lacks a feature (UFFDIO_API: %v)", err), hca.ErrNotSupported,
				"watching any mapping needs UFFD_FEATURE_WP_ASYNC, Linux 6.7 with CONFIG_PTE_MARKER_UFFD_WP; use explicit calls")
		}
	}
	if k.maps, err = openProc("/proc/self/maps"); err != nil {
		return k, err
	}
	if k.pagemap, err = openProc("/proc/self/pagemap"); err != nil {
		return k, err
	}
	k.scanner = uffd.NewScanner(k.pagemap)
	if k.stopFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return k, fewError("eventfd", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return k, fewError("eventfd", err)
	}
	k.wake = os.NewFile(uintptr(wake), "events")
	k.reader, err = reader.Start(reader.Shared{Counter: k.counter, Ring: k.ring, Stats: k.stats, Rung: &k.rung}, k.fds, k.stopFD, wake)
	if err != nil {
		return k, fewError("start the reader thread", err)
	}
	k.workers.Add(1)
	go func() {
		defer k.workers.Done()
		var count [8]byte
		for {
			// The thread writes after events became visible, once until
			// catchUp; a read that fails is Close.
			if _, err := k.wake.Read(count[:]); err != nil {
				return
			}
			m.ringBell()
		}
	}()
	return k, nil
}

// openProc opens a file of this process without the Go poller.
func openProc(name string) (int, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	switch {
	case err == nil:
		return fd, nil
	case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM):
		return -1, sourceError(fmt.Sprintf("%s: %v", name, err), hca.ErrAccess,
			"a process that changed its user must be dumpable again, prctl(PR_SET_DUMPABLE, 1)")
	case errors.Is(err, unix.ENOENT):
		return -1, sourceError(fmt.Sprintf("%s: %v", name, err), hca.ErrNotSupported, "mount /proc; the kernel needs CONFIG_PROC_PAGE_MONITOR")
	}
	return -1, fewError(name, err)
}

// fewError is for what fails because the process has too much of it.
func fewError(what string, err error) error {
	return sourceError(fmt.Sprintf("%s: %v", what, err), hca.ErrNoMemory, "raise the limits of open files and threads")
}

func openError(err error) error {
	switch {
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		return sourceError(fmt.Sprintf("userfaultfd is forbidden (%v)", err), hca.ErrAccess,
			"allow the userfaultfd system call in the container's seccomp profile (Docker: --security-opt seccomp=...), or use explicit calls")
	case errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL):
		return sourceError(fmt.Sprintf("the kernel has no userfaultfd that works without privilege (%v)", err), hca.ErrNotSupported,
			"needs Linux 6.7 with CONFIG_USERFAULTFD; use explicit calls")
	case errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM):
		return fewError("userfaultfd", err)
	}
	return sourceError(fmt.Sprintf("userfaultfd: %v", err), hca.ErrNotSupported, "use explicit calls")
}

// stop ends the thread and closes everything. The thread closes the
// descriptors itself, so that nobody is left waiting for an event to be read.
func (k *kernel) stop() {
	k.mu.Lock()
	k.ended.Store(true)
	k.disarm()
	k.mu.Unlock()
	k.reader.Stop()
	k.closeFiles()
	k.workers.Wait()
}

// disarm ends the watch on everything, while the thread still reads. Closing
// the last descriptor would do it too, but a child that was forked and does not
// call exec has copies: then mappings would stay armed, and whoever unmaps them
// would wait for ever for an event to be read. The caller holds mu.
//
// What is armed is asked of the kernel, because memory that was moved or
// forgotten is not in known. Registering again tells whose it is: it fails for
// what another userfaultfd has, which must be let be, and Unregister takes any
// before Linux 6.17. Mappings that are moved meanwhile may be missed, so it is
// done until there is nothing left, a few times at most.
func (k *kernel) disarm() {
	if k.fault() != nil {
		return // the thread has closed them
	}
	for range tries {
		some := false
		for _, vma := range k.everything() {
			if any, err := k.scanner.AnyArmed(vma.lo, vma.hi); err != nil || !any {
				continue
			}
			for _, fd := range k.fds {
				if uffd.Register(fd, vma.lo, vma.hi) == nil {
					some = true
					_ = uffd.Unregister(fd, vma.lo, vma.hi) // fails if it is gone: as well
				}
			}
		}
		if !some {
			break
		}
	}
	// Events that were under way have to be read: no new ones begin.
	for _, fd := range k.fds {
		uffdSettles(fd)
	}
}

// everything is all mappings of the process, or what is known to be watched if
// they cannot be listed.
func (k *kernel) everything() []span {
	self, err := procfs.Self()
	if err != nil {
		return k.known.s
	}
	all, err := self.ProcMaps()
	if err != nil {
		return k.known.s
	}
	out := make([]span, len(all))
	for i, p := range all {
		out[i] = span{lo: uint64(p.StartAddr), hi: uint64(p.EndAddr)}
	}
	return out
}

// closeFiles closes what the thread does not own.
func (k *kernel) closeFiles() {
	for _, fd := range []int{k.maps, k.pagemap, k.stopFD} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	if k.wake != nil {
		k.wake.Close()
	}
}

// tryDescriptor sees whether descriptor i delivers: a page of our own is
// discarded, moved and unmapped, and each must arrive.
func (m *Monitor) tryDescriptor(i int) error {
	k := m.kernel
	failed := func(what string, err error) error {
		return sourceError(fmt.Sprintf("self-test of descriptor %d: %s: %v", i, what, err), hca.ErrNotSupported, "use explicit calls")
	}
	// Shared memory, because a mapping of it never merges with a neighbour. The
	// second is where the first is moved to.
	page := uintptr(pageSize)
	var at [2]uint64
	for j := range at {
		p, err := rawMmap(0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS, -1, 0)
		if err != nil {
			return failed("mmap", err)
		}
		at[j] = p
	}
	// Whatever happens, what is still ours goes. What a step gave up must not
	// be unmapped again: it may be somebody else's by now.
	ours := at[:]
	defer func() {
		for _, p := range ours {
			_ = rawMunmap(p, page) // of a page that is mapped: cannot fail
		}
	}()
	first := hca.Range{Addr: at[0], Len: pageSize}
	second := hca.Range{Addr: at[1], Len: pageSize}

	if err := uffd.Register(k.fds[i], first.Addr, first.End()); err != nil {
		return failed("watch a page", err)
	}
	if all, err := k.scanner.AllArmed(first.Addr, first.End()); err != nil || !all {
		if errors.Is(err, syscall.ENOTTY) {
			return sourceError("the kernel has no PAGEMAP_SCAN", hca.ErrNotSupported, "needs Linux 6.7; use explicit calls")
		}
		return failed("the watched page is not reported as watched", fmt.Errorf("PAGEMAP_SCAN: %w", errOr(err)))
	}
	if !uffdSettles(k.fds[i]) {
		return failed("probe", errors.New("it reports something under way for ever"))
	}
	for _, step := range []struct {
		what  string
		cause hca.Cause
		where hca.Range
		do    func() error
	}{
		{"madvise(MADV_DONTNEED)", hca.CauseDiscard, first, func() error { return rawMadvise(first.Addr, page, unix.MADV_DONTNEED) }},
		{"mremap", hca.CauseRemap, first, func() error {
			_, err := rawMremap(first.Addr, page, page, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, second.Addr)
			if err == nil {
				ours = at[1:]
			}
			return err
		}},
		{"munmap", hca.CauseUnmap, second, func() error {
			ours = nil
			return rawMunmap(second.Addr, page)
		}},
	} {
		c := m.newCursor()
		if err := step.do(); err != nil {
			return failed(step.what, err)
		}
		if err := m.expect(&c, step.where, step.cause); err != nil {
			return failed(step.what, err)
		}
	}
	return nil
}
