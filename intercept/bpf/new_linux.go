//go:build linux && (amd64 || arm64)

package bpf

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
	"example.com/holdfast/intercept/internal/source"
)

// New makes a monitor that is told by programs in the kernel of every system
// call of this process that takes memory away, before it acts and when it is
// done. It needs Linux 5.18 with type information of its own
// (CONFIG_DEBUG_INFO_BTF), and CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN, in
// the first user namespace. Before it answers it has seen events of its own
// doing.
//
// A call that another thread had begun before New is not seen. So make the
// monitor first and the threads that unmap memory later.
//
// Errors: hca.ErrInvalid for a Config that makes no sense; hca.ErrAccess where
// the kernel does not let this process trace; hca.ErrNotSupported where it
// lacks something, or events do not arrive; hca.ErrNoMemory. The text says
// what to do. Nothing is left behind.
func New(cfg Config) (*intercept.Monitor, error) {
	// Where nothing preempts a program none is passed by, and who switches tasks
	// need not pay for a guard.
	return newMonitor(cfg, preemptible())
}

func newMonitor(cfg Config, guard bool) (*intercept.Monitor, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	k, err := open(cfg, guard)
	if err != nil {
		return nil, refused(err)
	}
	m, err := intercept.Assemble(intercept.Config{Ring: cfg.Ring}, source.Parts{
		Counter: k.word(atCounter), Source: k, Start: k.start, Try: k.try,
	})
	if err != nil {
		k.unmap()
		return nil, err
	}
	// The counter and the ring may be read after Close.
	runtime.AddCleanup(m, func(s shared) { s.unmap() }, k.shared)
	return m, nil
}

// preemptible reports whether a program can be preempted, so that other calls
// on the same processor are passed by: see guard_linux.go.
func preemptible() bool {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return true
	}
	var major int
	n, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.", &major)
	return n != 1 || err != nil || major >= 7
}

// open loads and attaches everything, with the guard or without.
func open(cfg Config, guard bool) (k *kernel, err error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("how many processors there can be: %w", err)
	}
	k = &kernel{shared: shared{ring: cfg.Ring, size: sharedSize(cfg.Ring, cpus)}, maps: -1}
	defer func() {
		if err != nil {
			k.Stop()
			k.unmap()
		}
	}()
	b := &builder{slots: cfg.Ring, pageSize: int64(os.Getpagesize()), cpus: cpus, guarded: guard}
	if b.off, err = findOffsets(guard); err != nil {
		return k, err
	}
	for _, m := range []struct {
		to   **ebpf.Map
		fd   *int
		spec ebpf.MapSpec
	}{
		{&k.block, &b.mapFD, ebpf.MapSpec{Name: "holdfast_state", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(k.size), MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE}},
		{&k.spills, &b.spillFD, ebpf.MapSpec{Name: "holdfast_spill", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: spilled}},
		{&k.bell, &b.bellFD, ebpf.MapSpec{Name: "holdfast_bell", Type: ebpf.RingBuf, MaxEntries: uint32(b.pageSize)}},
	} {
		if *m.to, err = ebpf.NewMap(&m.spec); err != nil {
			return k, fmt.Errorf("make map %s: %w", m.spec.Name, err)
		}
		*m.fd = (*m.to).FD()
	}
	if k.mem, err = unix.MmapPtr(b.mapFD, 0, nil, k.size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		k.mem = nil
		return k, fmt.Errorf("map the shared block: %w", err)
	}
	k.events.shared = &k.shared
	if k.maps, err = unix.Open("/proc/self/maps", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return k, fmt.Errorf("/proc/self/maps: %w", err)
	}
	if b.self, err = k.whoami(b); err != nil {
		return k, err
	}
	k.ringSeen = b.off.ring
	all := all(b)
	loaded, err := load(all)
	if err != nil {
		return k, err
	}
	watched := make([]*ebpf.Program, len(b.watched()))
	once := map[string]*ebpf.Program{}
	for i, p := range all {
		switch {
		case p.once:
			once[p.name] = loaded[i]
			defer loaded[i].Close()
			continue
		case p.watched >= 0:
			watched[p.watched] = loaded[i]
		}
		k.programs = append(k.programs, loaded[i])
	}
	if guard {
		if err := k.findCounts(b, watched, once[nameWalk], once[nameCheck]); err != nil {
			return k, err
		}
	}
	for i, p := range all {
		if p.once {
			continue
		}
		l, err := link.AttachTracing(link.TracingOptions{Program: loaded[i]})
		if err != nil {
			return k, fmt.Errorf("attach program %s: %w", p.name, err)
		}
		k.links = append(k.links, l)
	}
	if k.reader, err = ringbuf.NewReader(k.bell); err != nil {
		return k, fmt.Errorf("open the bell: %w", err)
	}
	return k, nil
}

// Programs that are looked for by name.
const (
	nameGuard = "holdfast_guard"
	nameEnter = "holdfast_enter"
	nameWalk  = "holdfast_walk"
	nameCheck = "holdfast_check"
)

// program is one to be loaded.
type program struct {
	name, point string // as it is shown, and where it is attached
	ins         asm.Instructions
	watched     int  // its place among those that the guard watches, -1: none
	once        bool // only findCounts has a use for it
}

// all are the programs, in the order in which they are attached: first the guard,
// which must not miss that another is passed by, then ends before beginnings,
// because an operation that is announced must be settled.
func all(b *builder) []program {
	var all []program
	add := func(name, point string, watched int, ins asm.Instructions) {
		all = append(all, program{name, point, ins, watched, name == nameWalk || name == nameCheck})
	}
	several := 1
	if b.guarded {
		add(nameWalk, "bpf_prog", -1, b.walk())
		add(nameCheck, "sys_enter", -1, b.check())
		add(nameGuard, "sched_switch", -1, b.guard())
		several = submits
	}
	add("holdfast_leave", "sys_exit", 1, b.leave())
	add(nameEnter, "sys_enter", 0, b.enter())
	if b.off.ring {
		for range several { // if all are passed by, the slot of a request stays: a range that is not kept any more
			add("holdfast_complete", "io_uring_complete", -1, b.complete())
		}
		for i := range several {
			add("holdfast_submit", "io_uring_submit_req", 2+i, b.submit())
		}
	}
	return all
}

// load loads programs, all at once: the library reads the kernel's type information
// anew each time.
func load(all []program) (loaded []*ebpf.Program, err error) {
	spec := ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{}}
	key := func(i int) string { return fmt.Sprintf("%d, %s", i, all[i].name) }
	for i, p := range all {
		attach := ebpf.AttachTraceRawTp
		if p.name == nameWalk {
			attach = ebpf.AttachTraceIter
		}
		spec.Programs[key(i)] = &ebpf.ProgramSpec{Name: p.name, Type: ebpf.Tracing, AttachType: attach, AttachTo: p.point, Instructions: p.ins, License: "GPL"}
	}
	c, err := ebpf.NewCollection(&spec)
	if err != nil {
		return nil, fmt.Errorf("load %w", err) // it names the program
	}
	defer c.Close()
	for i := range all {
		loaded = append(loaded, c.DetachProgram(key(i)))
	}
	return loaded, nil
}

// whoami runs a program once, in this process, and asks it how the kernel names our
// address space. Nothing outside the kernel knows; the number of the process would
// differ in a container.
func (k *kernel) whoami(b *builder) (uint64, error) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "holdfast_whoami", Type: ebpf.RawTracepoint, Instructions: b.whoami(), License: "GPL"})
	if err != nil {
		return 0, fmt.Errorf("load program holdfast_whoami: %w", err)
	}
	defer prog.Close()
	if _, err := prog.Run(&ebpf.RunOptions{}); err != nil {
		return 0, err
	}
	self := k.word(atAnswer).Swap(0)
	if self == 0 {
		return 0, errors.New("a program that ran in this thread found no address space")
	}
	return self, nil
}

// findOffsets asks the kernel's type information, also for what only the guard needs.
func findOffsets(guard bool) (off offsets, err error) {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return off, fmt.Errorf("type information of the kernel: %w", err)
	}
	type field struct {
		to   *int16
		path string
	}
	fields := []field{
		{&off.mm, "task_struct.mm"}, {&off.brk, "mm_struct.brk"},
	}
	if guard {
		fields = append(fields, field{&off.pid, "task_struct.pid"}, field{&off.number, numberField}, field{&off.flags2, "task_struct.flags"},
			field{&off.aux, "bpf_prog.aux"}, field{&off.id, "bpf_prog_aux.id"}, field{&off.inside, "bpf_prog.active"}, field{&off.pptrs, "bpf_array.pptrs"})
	}
	if runtime.GOARCH == "amd64" {
		fields = append(fields, field{&off.status, "task_struct.thread_info.status"})
	}
	// A kernel can be built without io_uring, and called the tracepoint
	// otherwise before 6.3: then these requests are not seen, and String says so.
	var point *btf.Typedef
	off.ring = spec.TypeByName("btf_trace_io_uring_submit_req", &point) == nil
	if off.ring {
		if guard {
			fields = append(fields, field{&off.uring, "task_struct.io_uring"})
		}
		fields = append(fields, field{&off.opcode, "io_kiocb.opcode"}, field{&off.flags, "io_kiocb.flags"},
			field{&off.addr, "io_madvise.addr"}, field{&off.length, "io_madvise.len"}, field{&off.advice, "io_madvise.advice"},
			field{&off.how, "io_open.how.flags"})
	}
	for _, f := range fields {
		path := strings.Split(f.path, ".")
		var t *btf.Struct
		if err := spec.TypeByName(path[0], &t); err != nil {
			return off, fmt.Errorf("type information of the kernel: %s: %w", path[0], err)
		}
		bytes, ok := offsetOf(t, path[1:])
		if !ok || bytes > 1<<15-1 {
			return off, fmt.Errorf("type information of the kernel: no field %s within reach: %w", f.path, ebpf.ErrNotSupported)
		}
		*f.to = int16(bytes)
	}
	if most := int16(-onReq + onRead); off.ring && (off.addr+8 > most || off.length+8 > most || off.advice+4 > most || off.how+8 > most) {
		return off, fmt.Errorf("type information of the kernel: io_madvise or io_open is longer than %d bytes: %w", most, ebpf.ErrNotSupported)
	}
	return off, nil
}

// offsetOf finds a field, also in structures without a name.
func offsetOf(t btf.Type, path []string) (uint32, bool) {
	var members []btf.Member
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Struct:
		members = t.Members
	case *btf.Union:
		members = t.Members
	}
	for _, m := range members {
		rest := path
		switch m.Name {
		case path[0]:
			if rest = path[1:]; len(rest) == 0 {
				return m.Offset.Bytes(), true
			}
		case "":
		default:
			continue
		}
		if in, ok := offsetOf(m.Type, rest); ok {
			return m.Offset.Bytes() + in, true
		}
	}
	return 0, false
}

// refused says why the source cannot be had, and what to do.
func refused(err error) error {
	const instead = "; or use intercept.Auto"
	lock, _ := os.ReadFile("/sys/kernel/security/lockdown") // where there is none, there is no lockdown
	var verifier *ebpf.VerifierError
	rejected := errors.As(err, &verifier)
	// A locked kernel lets no program read its memory, and the verifier is who
	// says so.
	locked := strings.Contains(string(lock), "[confidentiality]") || rejected && strings.Contains(err.Error(), "cannot use helper bpf_probe_read")
	switch {
	case locked:
		return startError(fmt.Sprintf("the kernel is locked down (confidentiality), which forbids to trace it: %v", err), hca.ErrAccess, "boot with lockdown=integrity or none"+instead)
	case rejected:
		// Its word is EACCES or EINVAL, but no right is missing: this kernel
		// and the program do not fit each other.
		return startError(fmt.Sprintf("the kernel's verifier refuses a program: %v", err), hca.ErrNotSupported, "report it with the version of the kernel"+instead)
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		return startError(err.Error(), hca.ErrAccess, "needs CAP_BPF and CAP_PERFMON, and bpf(2) not forbidden by seccomp"+instead)
	case errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE):
		return startError(err.Error(), hca.ErrNoMemory, "raise the limits of open files and memory"+instead)
	}
	return startError(err.Error(), hca.ErrNotSupported, "needs Linux 5.18 with CONFIG_BPF_SYSCALL, CONFIG_DEBUG_INFO_BTF and CONFIG_FTRACE_SYSCALLS"+instead)
}

func (s shared) unmap() {
	if s.mem != nil {
		_ = unix.MunmapPtr(unsafe.Pointer(s.mem), s.size) // of what we mapped: cannot fail
	}
}
