package regcache_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
	"example.com/holdfast/regcache"
)

// Random programs against a plain model. A program maps, writes, moves, throws
// away and unmaps memory, and gets, uses and releases registrations of it; up
// to three run at once, each on address space of its own beside that of the
// others, with the same caches. The model is what a program knows by itself:
// which pages it has mapped and which bytes are in them. After each step the
// adapter has to have seen and written just these.
//
// HOLDFAST_MODEL_TIME (a duration) makes it go on that long in each world.

const (
	modelVar   = "HOLDFAST_MODEL_TIME"
	modelPages = 24
)

type opKind uint8

const (
	opNothing opKind = iota
	opMap
	opMapOver
	opUnmap
	opMove
	opMoveOver
	opShrink
	opGrow
	opDontNeed
	opRemove
	opFree
	opSettled
	opWrite
	opUse      // get, let the adapter read and write, release
	opUseAgain // the same for a range that was used not long ago
	opRow      // use page by page, so that neighbours come to be merged
	opHold
	opUseHeld
	opRelease
	opHeapNew
	opHeapUse
	opHeapRange
	opGC
	opTrim
	opFlush
	opInvalidate
	opSweep
	opAdopt // raw memory of a world with a monitor becomes owned, and foreign again
	opKinds
)

var opNames = [opKinds]string{"nothing", "map", "map over", "unmap", "move", "move over", "shrink", "grow", "DONTNEED", "REMOVE", "FREE", "settled",
	"write", "use", "use again", "use a row", "hold", "use held", "release", "heap new", "heap use", "heap use as range", "GC", "trim", "flush",
	"invalidate", "sweep", "adopt"}

// op is one step. How the numbers are meant depends on what is there when it is
// done: every sequence is a program, so that a failing one can be made shorter.
type op struct {
	kind       opKind
	a, b, c, d uint8
}

func (o op) String() string {
	return fmt.Sprintf("%s(%d,%d,%d,%d)", opNames[o.kind], o.a, o.b, o.c, o.d)
}

// weighted are the ops, each as often as it is to come; a power of two.
var weighted = func() (w [64]opKind) {
	often := map[opKind]int{opMap: 6, opMapOver: 2, opUnmap: 3, opMove: 2, opMoveOver: 2, opShrink: 1, opGrow: 1, opDontNeed: 2, opRemove: 1,
		opFree: 1, opSettled: 2, opWrite: 2, opUse: 7, opRow: 2, opUseAgain: 8, opHold: 3, opUseHeld: 3, opRelease: 3, opHeapNew: 2, opHeapUse: 3,
		opHeapRange: 1, opGC: 1, opTrim: 1, opFlush: 1, opInvalidate: 1, opSweep: 1, opAdopt: 1}
	at := 1 // the first is nothing: what a failing program does not need becomes that
	for k := opNothing; k < opKinds; k++ {
		for range often[k] {
			w[at] = k
			at++
		}
	}
	if at != len(w) {
		panic(fmt.Sprintf("%d ops for %d places", at, len(w)))
	}
	return w
}()

// bits draws a number of n bits, all of them alike: rapid's own integers are
// small as a rule.
func drawBits(t *rapid.T, n int) uint8 {
	x := uint8(0)
	for range n {
		x <<= 1
		if rapid.Bool().Draw(t, "") {
			x |= 1
		}
	}
	return x
}

func drawOp(t *rapid.T) op {
	return op{weighted[drawBits(t, 6)], drawBits(t, 8), drawBits(t, 8), drawBits(t, 8), drawBits(t, 8)}
}

// modelPage is what a program knows of a page.
type modelPage struct {
	mapping int // which call of mmap or mremap it is of; 0: not mapped
	kind    int // in memories
}

// program runs ops.
type program struct {
	k      *kit
	caches []*regcache.Cache
	l      *link
	base   uint64
	pages  [modelPages]modelPage
	bytes  []byte // what is in them
	next   int
	crowd  bool // others run beside it
	counts *modelCounts
	held   []heldRegion
	recent [4]hca.Range // used not long ago
	heap   [4][]byte
}

type heldRegion struct {
	r      *regcache.Region
	g      hca.Range
	intact bool // nothing has happened to its memory since
}

func (p *program) at(first, n int) hca.Range {
	return hca.Range{Addr: p.base + uint64(first)*page, Len: uint64(n) * page}
}

// span turns two numbers into a run of pages.
func span(a, b uint8) (first, n int) {
	first = int(a) % modelPages
	return first, 1 + int(b)%min(8, modelPages-first)
}

func (p *program) all(first, n int, is func(modelPage) bool) bool {
	for _, pg := range p.pages[first : first+n] {
		if !is(pg) {
			return false
		}
	}
	return true
}

func mapped(pg modelPage) bool { return pg.mapping != 0 }
func free(pg modelPage) bool   { return pg.mapping == 0 }

// oneMapping cuts a run of pages to the mapping that its first page is of.
func (p *program) oneMapping(first, n int) int {
	i := 0
	for i < n && p.pages[first+i].mapping == p.pages[first].mapping {
		i++
	}
	return i
}

// disturb says that the memory of the pages is not what it was.
func (p *program) disturb(first, n int) {
	g := p.at(first, n)
	for i := range p.held {
		if p.held[i].g.Overlaps(g) {
			p.held[i].intact = false
		}
	}
}

func (p *program) set(first, n int, pg modelPage) {
	p.disturb(first, n)
	for i := range n {
		p.pages[first+i] = pg
	}
}

func (p *program) model(g hca.Range) []byte { return p.bytes[g.Addr-p.base:][:g.Len] }

// same compares memory with the model.
func (p *program) same(g hca.Range) error {
	if have, want := bytesAt(g), p.model(g); !bytes.Equal(have, want) {
		i := 0
		for have[i] == want[i] {
			i++
		}
		return fmt.Errorf("the memory at %v is not what the program left there, from byte %d on", g, i)
	}
	return nil
}

func (p *program) sameAll() error {
	for i, pg := range p.pages {
		if mapped(pg) {
			if err := p.same(p.at(i, 1)); err != nil {
				return err
			}
		}
	}
	return nil
}

// buffer is a crooked piece of a run of pages that touches all of them.
func (p *program) buffer(o op) (first, n int, g hca.Range) {
	first, n = span(o.a, o.b)
	if o.d%4 != 3 { // mostly of what is mapped
		for i := 0; i < modelPages && free(p.pages[first]); i++ {
			first = (first + 1) % modelPages
		}
		i := 1
		for i < n && first+i < modelPages && mapped(p.pages[first+i]) {
			i++
		}
		n = i
	}
	g = p.at(first, n)
	lead, tail := uint64(o.c)*16%page, uint64(o.d)*16%page
	if o.c%3 == 0 {
		lead = 0
	}
	if o.d%3 == 0 || lead+tail >= page {
		tail = 0
	}
	g.Addr += lead
	g.Len -= lead + tail
	return first, n, g
}

// exchange lets the adapter read and write g, or b where it is not of the pages.
func (p *program) exchange(r *regcache.Region, g hca.Range) error {
	wrong := p.l.wrong
	if err := p.same(g); err != nil {
		return err
	}
	if err := p.l.check(r, bytesAt(g)); err != nil {
		return err
	}
	if p.l.wrong != wrong {
		return errors.New(p.l.first)
	}
	copy(p.model(g), bytesAt(g))
	return nil
}

func (p *program) cache(o op) *regcache.Cache { return p.caches[int(o.c^o.d)%len(p.caches)] }

func access(o op) hca.Access {
	return []hca.Access{allWays, allReads, hca.LocalWrite, hca.LocalWrite | hca.RemoteWrite, allWays, hca.LocalRead}[int(o.d)%6]
}

func (p *program) step(o op) error {
	first, n := span(o.a, o.b)
	g := p.at(first, n)
	mem := p.k.mem
	fresh := func(kind int) modelPage {
		p.next++
		return modelPage{p.next, kind}
	}
	switch o.kind {
	case opMap, opMapOver:
		flags := isFree
		if o.kind == opMapOver {
			flags = unix.MAP_FIXED
		} else if !p.all(first, n, free) {
			return nil
		}
		kind := int(o.c) % 5 // all but huge pages
		fd := -1
		m := memories[kind]
		if m.file {
			f, err := unix.MemfdCreate("model", unix.MFD_CLOEXEC)
			if err != nil {
				return err
			}
			defer unix.Close(f)
			if err := unix.Ftruncate(f, modelPages*page); err != nil {
				return err
			}
			fd = f
		}
		if _, err := mem.mmap(g, readWrite, m.flags|flags, fd); err != nil {
			return err
		}
		p.set(first, n, fresh(kind))
		clear(p.model(g))
		p.write(g)
	case opUnmap:
		if err := mem.munmap(g); err != nil {
			return err
		}
		p.set(first, n, modelPage{})
	case opMove, opMoveOver:
		if n = p.oneMapping(first, n); !mapped(p.pages[first]) {
			return nil
		}
		to := int(o.c) % (modelPages - n + 1)
		if to < first+n && first < to+n || o.kind == opMove && !p.all(to, n, free) {
			return nil // the kernel does not move a mapping over itself
		}
		_, err := mem.mremap(p.at(first, n), uint64(n)*page, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, p.at(to, n).Addr)
		if errors.Is(err, unix.EFAULT) && p.crowd && p.k.seesAll() {
			// Memory that is watched in part cannot be moved, and a neighbour
			// that was watched while this was mapped can have that effect. How
			// far the kernel came is not known.
			p.counts.refused.Add(1)
			p.set(first, n, modelPage{})
			p.set(to, n, modelPage{})
			return errors.Join(mem.munmap(p.at(first, n)), mem.munmap(p.at(to, n)))
		}
		if err != nil {
			return err
		}
		p.set(to, n, fresh(p.pages[first].kind))
		p.set(first, n, modelPage{})
		copy(p.model(p.at(to, n)), p.model(p.at(first, n)))
	case opShrink:
		if n = p.oneMapping(first, n); !mapped(p.pages[first]) || n < 2 {
			return nil
		}
		if _, err := mem.mremap(p.at(first, n), page, 0, 0); err != nil {
			return err
		}
		p.set(first+1, n-1, modelPage{})
	case opGrow: // private memory, from its end into free space
		last := first
		for last < modelPages && p.pages[last].mapping == p.pages[first].mapping {
			last++
		}
		if pg := p.pages[first]; !mapped(pg) || memories[pg.kind].flags&unix.MAP_PRIVATE == 0 || memories[pg.kind].file ||
			last == modelPages || mapped(p.pages[last]) {
			return nil
		}
		old := p.at(first, last-first)
		if _, err := mem.mremap(old, old.Len+page, 0, 0); err != nil {
			if errors.Is(err, unix.ENOMEM) { // not the last page of its mapping in the kernel's eyes
				return nil
			}
			if errors.Is(err, unix.EFAULT) && p.crowd && p.k.seesAll() { // watched in part, as above
				p.counts.refused.Add(1)
				return nil
			}
			return err
		}
		// What was cached of it is still good.
		p.pages[last] = p.pages[first]
		clear(p.model(p.at(last, 1)))
	case opDontNeed, opRemove, opFree:
		for i := range n {
			pg := p.pages[first+i]
			m := memories[pg.kind]
			private := m.flags&unix.MAP_PRIVATE != 0
			advice := unix.MADV_DONTNEED
			switch {
			case !mapped(pg):
				continue
			case o.kind == opRemove && !private:
				advice = unix.MADV_REMOVE
			case o.kind == opRemove:
				continue
			case o.kind == opFree && private && !m.file:
				advice = unix.MADV_FREE
			case o.kind == opFree:
				continue
			}
			one := p.at(first+i, 1)
			if err := mem.madvise(one, advice); err != nil {
				return err
			}
			p.disturb(first+i, 1)
			switch {
			case advice == unix.MADV_FREE:
				p.write(one) // what is there is the kernel's to choose, until it is written
			case private || advice == unix.MADV_REMOVE:
				clear(p.model(one))
			}
		}
	case opSettled:
		if m, is := p.k.mon.(*intercept.Monitor); is {
			return m.Settled(g)
		}
	case opAdopt:
		m, is := p.k.mon.(*intercept.Monitor)
		if !is || p.k.owned || p.k.name == unseen.name {
			return nil // a raw munmap of it would break the contract
		}
		// For a moment it is owned: nobody takes it away meanwhile but us.
		if err := m.Adopt(g); err != nil {
			return err
		}
		err := p.step(op{opUse, o.a, o.b, o.c, o.d})
		return errors.Join(err, m.Disown(g))
	case opWrite:
		if first, n, g = p.buffer(o); p.all(first, n, mapped) {
			p.write(g)
		}
	case opUse, opUseAgain, opHold:
		first, n, g = p.buffer(o)
		if o.kind == opUseAgain {
			if g = p.recent[o.a%4]; g.Empty() {
				return nil
			}
			first, n = int((g.Addr-p.base)/page), int(g.Pages(page).Len/page)
		}
		whole := p.all(first, n, mapped)
		if whole {
			p.recent[o.b%4] = g
		}
		r, err := p.cache(o).Get(g, access(o))
		switch {
		case !whole && p.k.backend == nil:
			if err == nil {
				r.Release()
				return fmt.Errorf("%v is not mapped throughout, and Get works", g)
			}
			if !errors.Is(err, hca.ErrBadAddress) {
				return p.k.excuse(err)
			}
			return nil
		case err != nil:
			return p.k.excuse(err)
		case !r.Range().Contains(g) || !r.Access().Has(access(o)):
			r.Release()
			return fmt.Errorf("Get(%v, %v) answers with %v, %v", g, access(o), r.Range(), r.Access())
		case whole:
			if err := p.exchange(r, g); err != nil {
				r.Release()
				return err
			}
		}
		if o.kind == opHold && whole && len(p.held) < 6 {
			p.held = append(p.held, heldRegion{r, g, true})
			return nil
		}
		r.Release()
	case opRow:
		for i := range modelPages {
			if at := (first + i) % modelPages; mapped(p.pages[at]) {
				if err := p.step(op{opUse, uint8(at), 0, 0, 0}); err != nil {
					return err
				}
			}
		}
	case opUseHeld:
		if len(p.held) == 0 {
			return nil
		}
		h := p.held[int(o.a)%len(p.held)]
		if h.intact {
			return p.exchange(h.r, h.g)
		}
		if p.k.backend == nil { // its keys are good until its Release, whatever they lead to
			_, err := p.l.see(h.r, h.g)
			return err
		}
	case opRelease:
		if len(p.held) == 0 {
			return nil
		}
		i := int(o.a) % len(p.held)
		p.held[i].r.Release()
		p.held = append(p.held[:i], p.held[i+1:]...)
	case opHeapNew:
		p.heap[o.a%4] = make([]byte, 1+int(o.b)*int(o.c))
	case opHeapUse, opHeapRange:
		b := p.heap[o.a%4]
		if len(b) == 0 {
			return nil
		}
		if o.b%2 == 0 {
			b = b[int(o.c)%len(b):]
		}
		p.l.write(b)
		var r *regcache.Region
		var err error
		if o.kind == opHeapUse {
			r, err = p.cache(o).GetBytes(b, access(o))
		} else {
			r, err = p.cache(o).Get(hca.RangeOf(b), access(o))
		}
		if err != nil {
			return p.k.excuse(err)
		}
		defer r.Release()
		wrong := p.l.wrong
		if err := p.l.check(r, b); err != nil {
			return err
		}
		if p.l.wrong != wrong {
			return errors.New(p.l.first)
		}
	case opGC:
		if o.a%4 == 0 {
			debug.FreeOSMemory()
		} else {
			runtime.GC()
		}
	case opTrim:
		p.cache(o).Trim(uint64(o.a) * page)
	case opFlush:
		p.cache(o).Flush()
	case opInvalidate:
		// What is held is out of look-up then, and as good as before.
		p.cache(o).Invalidate(g)
	case opSweep:
		if o.a%4 == 0 {
			p.cache(o).Sweep()
		}
	}
	return nil
}

func (p *program) write(g hca.Range) {
	p.l.write(bytesAt(g))
	copy(p.model(g), bytesAt(g))
}

func (p *program) run(ops []op) error {
	for i, o := range ops {
		if err := p.step(o); err != nil {
			return fmt.Errorf("step %d, %v: %w", i, o, err)
		}
		if i%8 == 7 {
			if err := p.sameAll(); err != nil {
				return fmt.Errorf("after step %d, %v: %w", i, o, err)
			}
		}
	}
	return p.sameAll()
}

// end gives everything back.
func (p *program) end() error {
	for _, h := range p.held {
		h.r.Release()
	}
	return p.k.mem.munmap(p.at(0, modelPages))
}

func TestModel_RealMemory(t *testing.T) {
	ws := []world{foreign, oneChannel, smallRing, owned, ownedBoth, strict, unseen, alone, odpWhole, odpWindows, odpRange, flaky, flakyOwned}
	long := os.Getenv(modelVar)
	limit := time.Minute
	if d, err := time.ParseDuration(long); err == nil {
		limit += d
	}
	inWorlds(t, limit, nil, ws, regcache.Config{}, func(t *testing.T, k *kit) {
		require.NoError(t, flag.Set("rapid.nofailfile", "true"))
		require.NoError(t, flag.Set("rapid.checks", fmt.Sprint(underRace(rounds(20), 2))))
		var n modelCounts
		check := func() {
			rapid.Check(t, func(t *rapid.T) { runModel(t, k, &n) })
		}
		began := time.Now()
		check()
		if d, err := time.ParseDuration(long); err == nil {
			for time.Since(began) < d && !t.Failed() {
				check()
			}
		}
		t.Logf("%s: %d programs, %d steps, %d hits, %d registrations, %d invalidations, %d moves refused, in %v", k.name, n.runs.Load(), n.steps.Load(),
			n.hits.Load(), n.registrations.Load(), n.invalidations.Load(), n.refused.Load(), time.Since(began).Round(time.Millisecond))
	})
}

// TestModel_Fails shows that the model finds what a cache without interception
// does wrong.
func TestModel_Fails(t *testing.T) {
	inWorlds(t, time.Minute, nil, []world{trusting}, regcache.Config{}, func(t *testing.T, k *kit) {
		var n modelCounts
		found := 0
		rapid.Check(t, func(t *rapid.T) {
			if err := tryModel(t, k, &n); err != nil {
				if !strings.Contains(err.Error(), "adapter") && !strings.Contains(err.Error(), "left there") && !strings.Contains(err.Error(), "is not mapped throughout") {
					t.Fatalf("%v", err)
				}
				found++
			}
		})
		t.Logf("%d of %d programs went wrong", found, n.runs.Load())
		require.Greater(t, found, int(n.runs.Load())/3)
	})
}

// modelCounts is what all programs together did.
type modelCounts struct {
	runs, steps, hits, registrations, invalidations atomic.Uint64
	refused                                         atomic.Uint64 // moves that the kernel would not make
}

func runModel(t *rapid.T, k *kit, n *modelCounts) {
	if err := tryModel(t, k, n); err != nil {
		t.Fatalf("%v", err)
	}
}

func tryModel(t *rapid.T, k *kit, n *modelCounts) error {
	cfg := regcache.Config{
		Monitor:    nil,
		MaxRegions: rapid.SampledFrom([]int{0, 2, 5, 40}).Draw(t, "regions"),
		MaxBytes:   rapid.SampledFrom([]uint64{0, 0, 12 * page, 100 * page}).Draw(t, "bytes"),
		MaxMerge:   rapid.SampledFrom([]uint64{0, 1, 16 * page}).Draw(t, "merge"),
		SweepEvery: rapid.SampledFrom([]time.Duration{0, -1, time.Millisecond}).Draw(t, "sweep"),
	}
	if k.mon != nil {
		cfg.Monitor = k.mon
	}
	threads := rapid.IntRange(1, 3).Draw(t, "threads")
	var caches []*regcache.Cache
	for range rapid.IntRange(1, 2).Draw(t, "caches") {
		c, err := regcache.New(k.back, cfg)
		if err != nil {
			return err
		}
		caches = append(caches, c)
	}
	length := []int{8, 32, 100, 250}[drawBits(t, 2)]
	programs := make([]*program, threads)
	all := make([][]op, threads)
	for i := range programs {
		programs[i] = &program{k: k, caches: caches, base: place(30) + uint64(i)*modelPages*page, bytes: make([]byte, modelPages*page), crowd: threads > 1, counts: n}
		programs[i].l = k.newLink(t, 70<<10)
		all[i] = rapid.SliceOfN(rapid.Custom(drawOp), length, length).Draw(t, fmt.Sprintf("program %d", i))
		n.steps.Add(uint64(len(all[i])))
	}
	n.runs.Add(1)
	errs := make([]error, threads)
	done := make(chan int)
	for i, p := range programs {
		go func() {
			errs[i] = p.run(all[i])
			errs[i] = errors.Join(errs[i], p.end())
			done <- i
		}()
	}
	for range programs {
		<-done // the child's hard limit bounds it
	}
	for _, c := range caches {
		errs = append(errs, c.Close())
		s := c.Stats()
		n.hits.Add(s.Hits)
		n.registrations.Add(s.Registrations)
		n.invalidations.Add(s.Invalidations)
		if s.Registered != 0 || s.Registrations != s.Deregistrations || s.BytesPinned != 0 || s.BytesDead != 0 || s.DeregisterErrors != 0 {
			errs = append(errs, fmt.Errorf("after Close: %+v", s))
		}
	}
	if twice := k.back.twice(); twice != 0 {
		errs = append(errs, fmt.Errorf("%d registrations were dropped twice", twice))
	}
	if live := k.back.live(); live != 0 {
		errs = append(errs, fmt.Errorf("%d registrations are left", live))
	}
	return errors.Join(errs...)
}

// Worlds whose device now and then refuses what it could do: out of keys, out
// of memory, or for no good reason.
var (
	flaky      = world{name: "foreign_flaky", monitor: foreign.monitor, keeps: true, flaky: true}
	flakyOwned = world{name: "owned_flaky", monitor: ownedBoth.monitor, owned: true, keeps: true, discards: true, flaky: true}
)

var errWhim = errors.New("for no good reason")

// whims is when a flaky device refuses.
func whims() error {
	switch rand.IntN(40) {
	case 0:
		return &hca.OpError{Op: "whim", Err: hca.ErrNoKeys}
	case 1:
		return &hca.OpError{Op: "whim", Err: hca.ErrNoMemory}
	case 2:
		return errWhim
	case 3:
		return &hca.OpError{Op: "whim", Err: hca.ErrBadAddress}
	}
	return nil
}

// excuse is nil for an error that a flaky device is the reason of.
func (k *kit) excuse(err error) error {
	if k.flaky && (errors.Is(err, errWhim) || errors.Is(err, hca.ErrNoKeys) || errors.Is(err, hca.ErrNoMemory) || errors.Is(err, hca.ErrBadAddress)) {
		return nil
	}
	return err
}
