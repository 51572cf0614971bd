package regcache_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/hca"
	"example.com/holdfast/hcasim"
	"example.com/holdfast/intercept"
	"example.com/holdfast/intercept/bpf"
	"example.com/holdfast/internal/childtest"
	"example.com/holdfast/odpbackend"
	"example.com/holdfast/pinbackend"
	"example.com/holdfast/regcache"
)

// The tests in files real_*_linux_test.go run the cache on the memory of a real
// process: the live device pins and moves it, and is the oracle, because a
// stale pin of it really reads old bytes and loses new ones. Every transfer is
// compared byte by byte. Each test runs in several worlds (who watches the
// memory, who maps it, what registers it), and where a real adapter would give
// wrong bytes without interception the same loop runs in a trusting world as
// well, where it has to: else the test could not fail.

const (
	page     = 4096
	allReads = hca.LocalRead | hca.RemoteRead
	allWays  = hca.LocalWrite | hca.RemoteWrite | hca.RemoteRead
)

// world is a way to run the cache: what tells that memory goes away, how the
// program maps its memory, and what registers.
type world struct {
	name string

	monitor func() (monitor, error)           // nil: the cache has none
	owned   bool                              // the program maps through the monitor
	backend func(hca.Device) regcache.Backend // nil: pinned

	keeps    bool                               // registrations of mapped memory are kept here
	discards bool                               // and also of memory with a discard behind it
	blind    bool                               // wrong bytes are what must come
	flaky    bool                               // the device refuses now and then
	mixed    bool                               // the program maps some of its memory through the monitor, in the model test
	several  func(t *testing.T, k *kit) []stack // what each of several caches runs on, in the model test; nil: the backend
}

// monitor is a Monitor that has to be closed.
type monitor interface {
	regcache.Monitor
	Close() error
}

// open makes a constructor of *intercept.Monitor fit for a world.
func open(f func() (*intercept.Monitor, error)) func() (monitor, error) {
	return func() (monitor, error) {
		m, err := f()
		if err != nil {
			return nil, err
		}
		return m, nil
	}
}

func userfault(cfg intercept.Config) func() (monitor, error) {
	return open(func() (*intercept.Monitor, error) { return intercept.UserfaultConfig(cfg) })
}

func onDemand(mode odpbackend.Mode) func(hca.Device) regcache.Backend {
	return func(d hca.Device) regcache.Backend {
		b, err := odpbackend.New(d, odpbackend.Config{Mode: mode})
		if err != nil {
			panic(err) // in a child process, which fails by it
		}
		return b
	}
}

// The worlds.
var (
	foreign    = world{name: "foreign", monitor: userfault(intercept.Config{}), keeps: true}
	oneChannel = world{name: "foreign_one_channel", monitor: userfault(intercept.Config{Descriptors: 1}), keeps: true}
	smallRing  = world{name: "foreign_small_ring", monitor: userfault(intercept.Config{Ring: 64, Descriptors: 2}), keeps: true}
	inKernel   = world{name: "bpf", monitor: open(func() (*intercept.Monitor, error) { return bpf.New(bpf.Config{}) }), keeps: true, discards: true}
	owned      = world{name: "owned", monitor: open(intercept.Explicit), owned: true, keeps: true, discards: true}
	ownedBoth  = world{name: "owned_under_userfault", monitor: userfault(intercept.Config{}), owned: true, keeps: true, discards: true}
	strict     = world{name: "strict", monitor: userfault(intercept.Config{Strict: true}), owned: true, keeps: true, discards: true}
	unseen     = world{name: "unseen", monitor: open(intercept.Explicit)} // raw calls, and only explicit ones are heard
	alone      = world{name: "no_monitor"}
	odpWhole   = world{name: "odp_whole", backend: onDemand(odpbackend.ModeWhole), keeps: true, discards: true}
	odpWindows = world{name: "odp_windows", backend: onDemand(odpbackend.ModeWindows), keeps: true, discards: true}
	odpRange   = world{name: "odp_range", backend: onDemand(odpbackend.ModeRange), keeps: true, discards: true}
	trusting   = world{name: "trusting", monitor: func() (monitor, error) { return newTrust(), nil }, keeps: true, discards: true, blind: true}
)

// worlds are all but the trusting one.
var worlds = []world{foreign, oneChannel, smallRing, owned, ownedBoth, strict, unseen, alone, odpWhole, odpWindows, odpRange}

// kit is a world that runs: a fabric, two devices, a monitor, a cache.
type kit struct {
	world
	fab   *hcasim.Fabric
	a, b  *hcasim.Device // a is the cache's, b the peer's
	mon   monitor        // nil where the world has none
	mem   mapper
	back  *counting
	cache *regcache.Cache
}

// inWorlds runs body in a child process for each world, with a hard limit each.
// Worlds that this machine or build lacks are skipped, and say what is missing.
// Whatever runs where userfaultfd watches foreign memory, runs where programs
// in the kernel do as well.
func inWorlds(t *testing.T, limit time.Duration, env []string, ws []world, cfg regcache.Config, body func(t *testing.T, k *kit)) {
	if i := slices.IndexFunc(ws, func(w world) bool { return w.name == foreign.name }); i >= 0 {
		ws = slices.Insert(slices.Clone(ws), i+1, inKernel)
	}
	for _, w := range ws {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel() // children do not disturb each other
			runInWorld(t, limit, env, w, cfg, body)
		})
	}
}

// runInWorld runs body in a child process for one world.
func runInWorld(t *testing.T, limit time.Duration, env []string, w world, cfg regcache.Config, body func(t *testing.T, k *kit)) {
	childtest.Run(t, limit, childEnv(env...), func(t *testing.T) { body(t, newKit(t, w, cfg)) })
}

const shortVar = "HOLDFAST_TEST_SHORT"

// childEnv hands -short on to the child, and spares it the second that the race
// detector waits at the end of a process.
func childEnv(more ...string) []string {
	env := append([]string{"GORACE=atexit_sleep_ms=0 " + os.Getenv("GORACE")}, more...)
	if testing.Short() {
		env = append(env, shortVar+"=1")
	}
	return env
}

// rounds is n, or a tenth of it if the run is to be short, or a sixth under the
// race detector, which makes everything several times slower.
func rounds(n int) int {
	switch {
	case os.Getenv(shortVar) != "":
		return max(n/10, 10)
	case raceDetector:
		return max(n/6, 10)
	}
	return n
}

// full reports whether the long form of a test is asked for: HOLDFAST_PROOF=full
// in the environment, and a -timeout of 30m.
func full() bool { return os.Getenv("HOLDFAST_PROOF") == "full" }

// longest is the hard limit of a child: that of an ordinary run, or of a full one.
func longest(ordinary time.Duration) time.Duration {
	if full() {
		return 25 * time.Minute
	}
	return ordinary
}

// underRace is n, or a share of it under the race detector: for loops that take
// seconds without.
func underRace(n, share int) int {
	if raceDetector {
		return max(n/share, 10)
	}
	return n
}

// seesAll reports whether the kernel tells the monitor of this world.
func (w world) seesAll() bool {
	return w.monitor != nil && !w.blind && w.name != owned.name && w.name != unseen.name && w.name != mixedCalls.name
}

// newFabric opens a fabric in its full form, or skips the test.
func newFabric(t *testing.T) (fab *hcasim.Fabric, a, b *hcasim.Device) {
	t.Helper()
	fab, err := hcasim.NewFabric(hcasim.FabricConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fab.Close()) })
	devices := [2]*hcasim.Device{}
	for i := range devices {
		devices[i], err = hcasim.Open(hcasim.Live{Fabric: fab})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, devices[i].Close(), "something was leaked") })
	}
	if at := devices[0].Attr(); !at.StalePins {
		t.Skipf("the live device cannot show stale pins here: %s", at.Form)
	}
	return fab, devices[0], devices[1]
}

func newKit(t *testing.T, w world, cfg regcache.Config) *kit {
	t.Helper()
	k := &kit{world: w}
	k.fab, k.a, k.b = newFabric(t)
	if w.monitor != nil {
		var err error
		k.mon, err = w.monitor()
		if errors.Is(err, hca.ErrNotSupported) || errors.Is(err, hca.ErrAccess) {
			t.Skipf("no such monitor here: %v", err)
		}
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, k.mon.Close()) })
		cfg.Monitor = k.mon
	}
	k.mem = raw{}
	if w.owned {
		k.mem = calls{k.mon.(*intercept.Monitor)}
	}
	var back regcache.Backend = pinbackend.New(k.a)
	if w.backend != nil {
		back = w.backend(k.a)
	}
	k.back = &counting{Backend: back, out: map[*hca.MR]int{}}
	if w.flaky {
		k.back.refuse = whims
	}
	k.cache = k.newCache(t, cfg)
	return k
}

// newCache makes a cache of the kit's, which is closed at the end: nothing may
// be in use or left then.
func (k *kit) newCache(t *testing.T, cfg regcache.Config) *regcache.Cache {
	t.Helper()
	if k.mon != nil {
		cfg.Monitor = k.mon
	}
	c, err := regcache.New(k.back, cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		before := c.Stats()
		require.NoError(t, c.Close())
		s := c.Stats()
		require.Zero(t, s.Registered, "registrations are left after Close: before it, %+v", before)
		require.Equal(t, s.Registrations, s.Deregistrations)
		require.Zero(t, s.BytesPinned)
		require.Zero(t, s.BytesDead)
		require.Zero(t, k.back.twice(), "deregistered twice")
	})
	return c
}

// get is Cache.Get that must work.
func (k *kit) get(t testing.TB, g hca.Range, a hca.Access) *regcache.Region {
	t.Helper()
	r, err := k.cache.Get(g, a)
	require.NoError(t, err)
	require.True(t, r.Range().Contains(g), "%v does not cover %v", r.Range(), g)
	require.True(t, r.Access().Has(a), "%v does not allow %v", r.Access(), a)
	return r
}

// counting is a Backend that counts what is out, and has places for hooks.
type counting struct {
	regcache.Backend

	// guarded by mu; called without it
	refuse func() error      // why not to register now, or nil
	before func(g hca.Range) // ahead of each Register
	after  func(mr *hca.MR)  // behind each Register that worked
	drop   func(mr *hca.MR)  // ahead of each Deregister
	gone   func(mr *hca.MR)  // behind each Deregister

	mu      sync.Mutex
	out     map[*hca.MR]int // guarded by mu; several times the same one under on-demand paging
	doubles int             // guarded by mu
}

func (c *counting) Register(g hca.Range, a hca.Access) (*hca.MR, error) {
	before, after, _, _ := c.hooks()
	if before != nil {
		before(g)
	}
	c.mu.Lock()
	refuse := c.refuse
	c.mu.Unlock()
	if refuse != nil {
		if err := refuse(); err != nil {
			return nil, err
		}
	}
	mr, err := c.Backend.Register(g, a)
	if err != nil {
		return mr, err
	}
	c.mu.Lock()
	c.out[mr]++
	c.mu.Unlock()
	if after != nil {
		after(mr)
	}
	return mr, nil
}

func (c *counting) Deregister(mr *hca.MR) error {
	_, _, drop, gone := c.hooks()
	if drop != nil {
		drop(mr)
	}
	c.mu.Lock()
	if c.out[mr]--; c.out[mr] < 0 {
		c.doubles++
	}
	if c.out[mr] == 0 {
		delete(c.out, mr)
	}
	c.mu.Unlock()
	err := c.Backend.Deregister(mr)
	if gone != nil {
		gone(mr)
	}
	return err
}

// on changes the hooks: the reaper may be in the backend at any time.
func (c *counting) on(change func(c *counting)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c)
}

func (c *counting) hooks() (before func(hca.Range), after, drop, gone func(*hca.MR)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.before, c.after, c.drop, c.gone
}

// live is how many registrations are out.
func (c *counting) live() int { c.mu.Lock(); defer c.mu.Unlock(); return len(c.out) }

// twice is how many were dropped that were not out.
func (c *counting) twice() int { c.mu.Lock(); defer c.mu.Unlock(); return c.doubles }

// mapper is how the program changes its address space.
type mapper interface {
	mmap(at hca.Range, prot, flags, fd int) (hca.Range, error)
	munmap(g hca.Range) error
	mremap(g hca.Range, length uint64, flags int, to uint64) (hca.Range, error)
	madvise(g hca.Range, advice int) error
}

// raw makes plain system calls that nobody is told of.
type raw struct{}

func ptr(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

func (raw) mmap(at hca.Range, prot, flags, fd int) (hca.Range, error) {
	p, err := unix.MmapPtr(fd, 0, ptr(at.Addr), uintptr(at.Len), prot, flags)
	return hca.Range{Addr: uint64(uintptr(p)), Len: at.Len}, err
}

func (raw) munmap(g hca.Range) error { return unix.MunmapPtr(ptr(g.Addr), uintptr(g.Len)) }

func (raw) mremap(g hca.Range, length uint64, flags int, to uint64) (hca.Range, error) {
	p, err := unix.MremapPtr(ptr(g.Addr), uintptr(g.Len), ptr(to), uintptr(length), flags)
	return hca.Range{Addr: uint64(uintptr(p)), Len: length}, err
}

func (raw) madvise(g hca.Range, advice int) error { return unix.Madvise(bytesAt(g), advice) }

// calls goes through the monitor.
type calls struct{ m *intercept.Monitor }

func (c calls) mmap(at hca.Range, prot, flags, fd int) (hca.Range, error) {
	return c.m.Map(at, prot, flags, fd, 0)
}
func (c calls) munmap(g hca.Range) error { return c.m.Unmap(g) }
func (c calls) mremap(g hca.Range, length uint64, flags int, to uint64) (hca.Range, error) {
	return c.m.Remap(g, length, flags, to)
}
func (c calls) madvise(g hca.Range, advice int) error { return c.m.Advise(g, advice) }

// bytesAt is the memory at g. It must be mapped when it is touched.
func bytesAt(g hca.Range) []byte { return unsafe.Slice((*byte)(ptr(g.Addr)), g.Len) }

// place is the i-th of many places, a gigabyte each, in which the kernel puts
// nothing by itself: what is unmapped there stays free until a test maps it.
func place(i int) uint64 { return 1<<46 + uint64(i)<<30 }

const (
	readWrite = unix.PROT_READ | unix.PROT_WRITE
	anonymous = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	isFree    = unix.MAP_FIXED_NOREPLACE
)

// memory is a kind of memory to map.
type memory struct {
	name  string
	flags int
	file  bool // of a memfd
	huge  int  // advice about huge pages, 0 for none
}

var memories = []memory{
	{name: "private", flags: unix.MAP_PRIVATE | unix.MAP_ANONYMOUS},
	{name: "shared", flags: unix.MAP_SHARED | unix.MAP_ANONYMOUS},
	{name: "memfd", flags: unix.MAP_SHARED, file: true},
	{name: "memfd_private", flags: unix.MAP_PRIVATE, file: true},
	{name: "populated", flags: unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_POPULATE},
	{name: "huge", flags: unix.MAP_PRIVATE | unix.MAP_ANONYMOUS, huge: unix.MADV_HUGEPAGE},
}

// mapAt maps memory of the kind at g; flags are added (isFree, MAP_FIXED).
func (k *kit) mapAt(t testing.TB, m memory, g hca.Range, flags int) {
	t.Helper()
	fd := -1
	if m.file {
		fd = memfd(t, g.Len)
		defer unix.Close(fd)
	}
	got, err := k.mem.mmap(g, readWrite, m.flags|flags, fd)
	require.NoError(t, err)
	require.Equal(t, g, got)
	if m.huge != 0 {
		_ = raw{}.madvise(g, m.huge) // EINVAL on a kernel without huge pages
	}
}

func memfd(t testing.TB, n uint64) int {
	t.Helper()
	fd, err := unix.MemfdCreate("regcache-test", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, int64(n)))
	return fd
}

func (k *kit) unmap(t testing.TB, g hca.Range) {
	t.Helper()
	require.NoError(t, k.mem.munmap(g))
}

// link is a connection from the cache's device to the peer's, with a buffer at
// the peer. It is for one goroutine.
type link struct {
	own, far hca.QP
	ownCQ    hca.CQ
	farCQ    hca.CQ
	buf      []byte
	mr       *hca.MR
	seed     uint64
	turn     uint
	adapter  int    // whose keys of a Region it uses: which of those that Join was given
	wrong    int    // transfers that moved other bytes than they should
	first    string // what the first of them was
}

var linkNumber atomic.Uint64

// linkTest is what a link needs of a test, or of one run of a property.
type linkTest interface {
	require.TestingT
	Helper()
	Cleanup(func())
}

// newLink makes a link for transfers of up to n bytes.
func (k *kit) newLink(t linkTest, n int) *link { return k.newLinkFrom(t, k.a, n) }

// newLinkFrom makes one from another device of the fabric.
func (k *kit) newLinkFrom(t linkTest, own *hcasim.Device, n int) *link {
	t.Helper()
	l := &link{seed: linkNumber.Add(1) << 40}
	var err error
	l.ownCQ, err = own.NewCQ(16)
	require.NoError(t, err)
	l.farCQ, err = k.b.NewCQ(16)
	require.NoError(t, err)
	l.own, err = own.NewQP(hca.QPConfig{SendCQ: l.ownCQ})
	require.NoError(t, err)
	l.far, err = k.b.NewQP(hca.QPConfig{SendCQ: l.farCQ})
	require.NoError(t, err)
	require.NoError(t, l.own.Connect(l.far.Addr()))
	require.NoError(t, l.far.Connect(l.own.Addr()))
	l.buf, err = unix.Mmap(-1, 0, n, readWrite, anonymous)
	require.NoError(t, err)
	l.mr, err = k.b.Register(hca.RangeOf(l.buf), allWays)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, l.own.Close())
		require.NoError(t, l.far.Close())
		require.NoError(t, l.ownCQ.Close())
		require.NoError(t, l.farCQ.Close())
		require.NoError(t, k.b.Deregister(l.mr))
		require.NoError(t, unix.Munmap(l.buf))
	})
	return l
}

// transfer posts one request and answers with how it ended. Links work on
// goroutines other than the test's, so nothing here calls FailNow.
func transfer(qp hca.QP, cq hca.CQ, wr hca.SendWR) error {
	if err := qp.PostSend(wr); err != nil {
		return err
	}
	var wc [1]hca.WC
	for deadline := time.Now().Add(20 * time.Second); ; runtime.Gosched() {
		n, err := cq.Poll(wc[:])
		switch {
		case err != nil:
			return err
		case n == 1 && wc[0].Status != hca.WCSuccess:
			return wc[0].Status
		case n == 1:
			return nil
		case time.Now().After(deadline):
			return errors.New("no completion arrived in 20 s")
		}
	}
}

// fill writes a pattern that differs from that of every other seed in nearly
// every word.
func fill(b []byte, seed uint64) {
	x := seed*0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019
	for len(b) >= 8 {
		x = bits.RotateLeft64(x, 23)*0xD6E8FEB86659FD93 + seed
		binary.NativeEndian.PutUint64(b, x)
		b = b[8:]
	}
	for i := range b {
		x = bits.RotateLeft64(x, 23)*0xD6E8FEB86659FD93 + seed
		b[i] = byte(x >> 32)
	}
}

// sge is g in the words of the link's adapter.
func (l *link) sge(r *regcache.Region, g hca.Range) hca.SGE {
	s := r.SGERange(g)
	s.LKey = r.LKeyOn(l.adapter)
	return s
}

// see moves what the adapter finds at g into the peer's buffer, by a write with
// the local key or by a read of the peer's with the remote key, in turns.
func (l *link) see(r *regcache.Region, g hca.Range) ([]byte, error) {
	got := l.buf[:g.Len]
	l.turn++
	if l.turn&1 != 0 || !r.Access().Has(hca.RemoteRead) {
		return got, transfer(l.own, l.ownCQ, hca.SendWR{Op: hca.RDMAWrite, SGE: l.sge(r, g), Remote: hca.RemoteAddr{Addr: l.mr.Range.Addr, RKey: l.mr.RKey}})
	}
	return got, transfer(l.far, l.farCQ, hca.SendWR{Op: hca.RDMARead, SGE: hca.SGE{Addr: l.mr.Range.Addr, Len: g.Len, LKey: l.mr.LKey},
		Remote: hca.RemoteAddr{Addr: g.Addr, RKey: r.RKeyOn(l.adapter)}})
}

// put moves the peer's buffer to g, by a write of the peer's with the remote
// key or by a read with the local key, in turns.
func (l *link) put(r *regcache.Region, g hca.Range) error {
	l.turn++
	if l.turn&2 != 0 || !r.Access().Has(hca.RemoteWrite) {
		return transfer(l.own, l.ownCQ, hca.SendWR{Op: hca.RDMARead, SGE: l.sge(r, g), Remote: hca.RemoteAddr{Addr: l.mr.Range.Addr, RKey: l.mr.RKey}})
	}
	return transfer(l.far, l.farCQ, hca.SendWR{Op: hca.RDMAWrite, SGE: hca.SGE{Addr: l.mr.Range.Addr, Len: g.Len, LKey: l.mr.LKey},
		Remote: hca.RemoteAddr{Addr: g.Addr, RKey: r.RKeyOn(l.adapter)}})
}

// check lets the adapter read b and, if the Region allows it, write it, and
// compares every byte. What b holds then is new.
func (l *link) check(r *regcache.Region, b []byte) error {
	g := hca.RangeOf(b)
	clear(l.buf[:g.Len])
	got, err := l.see(r, g)
	if err != nil {
		return fmt.Errorf("the adapter cannot read %v: %w", g, err)
	}
	if !bytes.Equal(got, b) {
		l.note("the adapter read other bytes than there are at", g, r)
	}
	if !r.Access().Writes() {
		return nil
	}
	l.seed++
	fill(l.buf[:g.Len], l.seed)
	if err := l.put(r, g); err != nil {
		return fmt.Errorf("the adapter cannot write %v: %w", g, err)
	}
	if !bytes.Equal(l.buf[:g.Len], b) {
		l.note("what the adapter wrote did not arrive at", g, r)
	}
	return nil
}

func (l *link) note(what string, g hca.Range, r *regcache.Region) {
	l.wrong++
	if l.first == "" {
		l.first = fmt.Sprintf("%s %v (Region %v, %v memory, used once: %v)", what, g, r.Range(), r.Kind(), r.UsedOnce())
	}
}

// write fills b with bytes that were never there.
func (l *link) write(b []byte) { l.seed++; fill(b, l.seed) }

// use writes g, gets it, has the adapter read and write it, and gives it back.
func (l *link) use(c *regcache.Cache, g hca.Range) error {
	b := bytesAt(g)
	l.write(b)
	r, err := c.Get(g, allWays)
	if err != nil {
		return err
	}
	defer r.Release()
	return l.check(r, b)
}

// verdict is what the bytes have to say at the end of a loop.
func (k *kit) verdict(t *testing.T, wrong int, first string) {
	t.Helper()
	s := k.cache.Stats()
	t.Logf("%s: %d transfers wrong; %d hits, %d misses, %d registrations, %d done again, %d events, used once by reason %v",
		k.name, wrong, s.Hits, s.Misses, s.Registrations, s.Redone, s.Events, s.UsedOnce)
	if k.blind {
		require.Positive(t, wrong, "without interception a real adapter gives wrong bytes here: the test proves nothing")
		return
	}
	require.Zero(t, wrong, "first: %s", first)
}

func (k *kit) verdictOf(t *testing.T, ls ...*link) {
	t.Helper()
	wrong, first := 0, ""
	for _, l := range ls {
		wrong += l.wrong
		if first == "" {
			first = l.first
		}
	}
	k.verdict(t, wrong, first)
}

// wantHits says that the cache must have been a cache: a loop in which nothing
// is ever kept would be right whatever the protocol does.
func (k *kit) wantHits(t *testing.T, least int) {
	t.Helper()
	s := k.cache.Stats()
	if k.keeps {
		require.GreaterOrEqual(t, s.Hits, uint64(least), "hardly anything was kept: %+v", s)
	} else {
		require.Zero(t, s.Hits)
	}
}

// trust is a monitor that calls all memory owned and never says that any went
// away, except when it is tested: what a cache without interception believes.
type trust struct {
	counter atomic.Uint64
	mu      sync.Mutex
	feeds   map[*trustFeed]bool // guarded by mu
}

type trustFeed struct {
	m      *trust
	wake   func()
	events []hca.Event // guarded by m.mu
}

func newTrust() *trust { return &trust{feeds: map[*trustFeed]bool{}} }

func (m *trust) Counter() *atomic.Uint64   { return &m.counter }
func (m *trust) Watch(hca.Range) hca.Watch { return hca.Watch{Kind: hca.MemOwned} }
func (m *trust) UnderWay(uint32) bool      { return false }
func (m *trust) String() string            { return "trusts that nothing goes away" }
func (m *trust) Close() error              { return nil }

func (m *trust) Subscribe(wake func()) (hca.Feed, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := &trustFeed{m: m, wake: wake}
	m.feeds[f] = true
	return f, nil
}

func (m *trust) Exercise() (hca.Range, error) {
	g := hca.Range{Addr: page, Len: page}
	m.mu.Lock()
	defer m.mu.Unlock()
	for f := range m.feeds {
		f.events = append(f.events, hca.Event{Range: g, Cause: hca.CauseUnmap})
	}
	m.counter.Add(hca.CounterStep)
	for f := range m.feeds {
		f.wake()
	}
	return g, nil
}

func (f *trustFeed) Next(buf []hca.Event) int {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	n := copy(buf, f.events)
	f.events = f.events[n:]
	return n
}

func (f *trustFeed) Close() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	delete(f.m.feeds, f)
	return nil
}

// together runs the functions on threads of their own and waits for all; the
// child's hard limit bounds it. The first error ends the test.
func together(t *testing.T, fs ...func() error) {
	t.Helper()
	errs := make([]error, len(fs))
	var wg sync.WaitGroup
	for i, f := range fs {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			errs[i] = f()
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}

// heapInUse is what the Go heap holds after everything that can go has gone.
func heapInUse() uint64 {
	var ms runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&ms)
	return ms.HeapAlloc
}

// awaitSettled waits until no event is on its way that the memory at g could
// have to do with; the child's hard limit bounds it.
func awaitSettled(k *kit, g hca.Range) {
	for {
		w := k.mon.Watch(g)
		if k.mon.Counter().Load()&hca.Unsettled == 0 && (w.Domains == 0 || !k.mon.UnderWay(w.Domains)) {
			return
		}
		runtime.Gosched()
	}
}

// mappings is how many mappings this process has.
func mappings(t testing.TB) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return bytes.Count(b, []byte("\n"))
}

// threads gives the threads of this process. Those that they start inherit
// what is set for them.
func threads(t testing.TB) []int {
	t.Helper()
	dir, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	var tids []int
	for _, e := range dir {
		tid, err := strconv.Atoi(e.Name())
		require.NoError(t, err)
		tids = append(tids, tid)
	}
	return tids
}
