package regcache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"example.com/holdfast/hca"
	"example.com/holdfast/intercept"
	"example.com/holdfast/regcache"
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
	opDontNeed // also MADV_DONTNEED_LOCKED, and process_madvise on oneself
	opRemove
	opFree
	opGuard // MADV_GUARD_INSTALL, and off again
	opHarmless
	opProtect
	opSettled
	opBreak // brk, up or down
	opUseBreak
	opCommons // map, use and unmap a page for which all threads compete
	opWrite
	opUse      // get, let the adapters read and write, release
	opUseAgain // the same for a range that was used not long ago
	opRow      // use page by page, so that neighbours come to be merged
	opHold
	opUseHeld
	opRelease
	opBatch
	opList
	opView // get from a View, use, give back
	opViewHold
	opViewDrop
	opViewClose
	opPost
	opPoll
	opWait // for everything that was posted
	opCancel
	opQueueClose
	opHeapNew
	opHeapUse
	opHeapRange
	opGC
	opTrim
	opFlush
	opInvalidate
	opSweep
	opClose // close the cache, and make another
	opAdopt // raw memory of a world with a monitor becomes owned, and foreign again
	opKinds
)

var opNames = [opKinds]string{"opNothing", "opMap", "opMapOver", "opUnmap", "opMove", "opMoveOver", "opShrink", "opGrow", "opDontNeed", "opRemove",
	"opFree", "opGuard", "opHarmless", "opProtect", "opSettled", "opBreak", "opUseBreak", "opCommons", "opWrite", "opUse", "opUseAgain", "opRow", "opHold",
	"opUseHeld", "opRelease", "opBatch", "opList", "opView", "opViewHold", "opViewDrop", "opViewClose", "opPost", "opPoll", "opWait", "opCancel",
	"opQueueClose", "opHeapNew", "opHeapUse", "opHeapRange", "opGC", "opTrim", "opFlush", "opInvalidate", "opSweep", "opClose", "opAdopt"}

// op is one step.
type op struct {
	kind       opKind
	a, b, c, d uint8
}

func (o op) String() string {
	return fmt.Sprintf("%s(%d,%d,%d,%d)", opNames[o.kind], o.a, o.b, o.c, o.d)
}

// weighted are the kinds, each as often as it is to come; a power of two.
var weighted = regcache.Spread(map[opKind]int{opMap: 12, opMapOver: 4, opUnmap: 5, opMove: 3, opMoveOver: 3, opShrink: 2, opGrow: 2, opDontNeed: 4, opRemove: 2,
	opFree: 2, opGuard: 1, opHarmless: 1, opProtect: 2, opSettled: 3, opBreak: 2, opUseBreak: 4, opCommons: 8, opWrite: 2, opUse: 8, opUseAgain: 10, opRow: 2,
	opHold: 3, opUseHeld: 4, opRelease: 4, opBatch: 2, opList: 2, opView: 5, opViewHold: 2, opViewDrop: 1, opViewClose: 1, opPost: 3, opPoll: 2,
	opWait: 2, opCancel: 1, opQueueClose: 1, opHeapNew: 2, opHeapUse: 3, opHeapRange: 1, opGC: 1, opTrim: 1, opFlush: 1, opInvalidate: 1, opSweep: 1,
	opClose: 1, opAdopt: 1}, opKinds, 1<<7)

func drawOp(t *rapid.T) op {
	k, n := weighted[regcache.DrawBits(t, 7)], regcache.DrawNumbers(t)
	return op{k, n[0], n[1], n[2], n[3]}
}

// modelPage is what a program knows of a page.
type modelPage struct {
	mapping int // which call of mmap or mremap it is of; 0: not mapped
	kind    int // in memories
	prot    int
	owned   bool // in a world that is mixed: through the monitor
}

// program runs steps.
type program struct {
	m      *model
	k      *kit
	slots  []*slot
	links  map[adapter]*link
	base   uint64
	pages  [modelPages]modelPage
	bytes  []byte // what is in them
	brk    programBreak
	next   int
	crowd  bool // others run beside it
	held   []*heldRegion
	recent [4]hca.Range // used not long ago
	heap   [4][]byte
	ends   []end // one a slot
}

// heldRegion is a Region that was not released yet, or was only posted.
type heldRegion struct {
	r       *regcache.Region
	s       *stack
	view    *regcache.View // to give it back to, or nil
	g       hca.Range
	intact  bool // nothing has happened to its memory since
	whole   bool // all of it could be read and written, and still can
	ticket  regcache.Ticket
	dropped bool // canceled
}

func (h *heldRegion) release() {
	if h.view != nil {
		h.view.Release(h.r)
	} else {
		h.r.Release()
	}
}

// end is how a program uses a cache beside calling it: a View and a Queue.
type end struct {
	viewOf, queueOf *regcache.Cache
	view            *regcache.View
	queue           *regcache.Queue
	posted          map[uint64]*heldRegion // and not polled
	next            uint64
}

// errIdle is the answer of a step that found nothing to do.
var errIdle = errors.New("nothing to do")

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

func mapped(pg modelPage) bool   { return pg.mapping != 0 }
func free(pg modelPage) bool     { return pg.mapping == 0 }
func readable(pg modelPage) bool { return mapped(pg) && pg.prot&unix.PROT_READ != 0 }
func usable(pg modelPage) bool   { return mapped(pg) && pg.prot == readWrite }
func isOwned(pg modelPage) bool  { return pg.owned }
func isNotOwned(pg modelPage) bool {
	return !pg.owned
}

// within are the pages that g touches.
func (p *program) within(g hca.Range) (first, n int) {
	return int((g.Addr - p.base) / page), int(g.Pages(page).Len / page)
}

// oneMapping cuts a run of pages to the mapping that its first page is of.
func (p *program) oneMapping(first, n int) int {
	i := 0
	for i < n && p.pages[first+i].mapping == p.pages[first].mapping {
		i++
	}
	return i
}

// eachHeld calls f for what is held, and for what was posted and not polled.
func (p *program) eachHeld(g hca.Range, f func(h *heldRegion)) {
	for _, h := range p.held {
		if h.g.Overlaps(g) {
			f(h)
		}
	}
	for _, e := range p.ends {
		for _, h := range e.posted {
			if h.g.Overlaps(g) {
				f(h)
			}
		}
	}
}

// disturb says that the memory of the pages is not what it was.
func (p *program) disturb(g hca.Range) {
	p.eachHeld(g, func(h *heldRegion) { h.intact, h.whole = false, false })
}

func (p *program) set(first, n int, pg modelPage) {
	p.disturb(p.at(first, n))
	for i := range n {
		p.pages[first+i] = pg
	}
}

// own says whether the pages are owned from now on.
func (p *program) own(first, n int, owned bool) {
	for i := range n {
		p.pages[first+i].owned = owned
	}
}

// fresh is a page of a new mapping.
func (p *program) fresh(kind, prot int, owned bool) modelPage {
	p.next++
	return modelPage{p.next, kind, prot, owned}
}

// by is who makes a call that takes memory of these pages away, and whether it
// is the monitor in a world where it need not be: it has to where any of them is
// owned.
func (p *program) by(o op, spans ...[2]int) (mem mapper, owned bool) {
	if !p.k.mixed {
		return p.k.mem, false
	}
	owned = o.d&1 == 0
	for _, s := range spans {
		owned = owned || !p.all(s[0], s[1], isNotOwned)
	}
	if owned {
		return calls{p.k.mon.(*intercept.Monitor)}, true
	}
	return p.k.mem, false
}

func (p *program) model(g hca.Range) []byte {
	if b := &p.brk; b.mine && g.Addr >= b.base && g.End() <= b.at(b.pages) {
		return b.bytes[g.Addr-b.base:][:g.Len]
	}
	return p.bytes[g.Addr-p.base:][:g.Len]
}

// differ compares bytes with the model.
func differ(what string, g hca.Range, have, want []byte) error {
	if bytes.Equal(have, want) {
		return nil
	}
	i := 0
	for have[i] == want[i] {
		i++
	}
	return fmt.Errorf("%s %v is not what the program left there, from byte %d on: %x, not %x",
		what, g, i, have[i:min(len(have), i+8)], want[i:min(len(want), i+8)])
}

// same compares memory with the model.
func (p *program) same(g hca.Range) error {
	return differ("the memory at", g, bytesAt(g), p.model(g))
}

func (p *program) sameAll() error {
	for i, pg := range p.pages {
		if readable(pg) {
			if err := p.same(p.at(i, 1)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *program) write(g hca.Range) {
	for _, l := range p.links {
		l.write(bytesAt(g))
		break
	}
	copy(p.model(g), bytesAt(g))
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
	return first, n, crooked(p.at(first, n), o)
}

// crooked cuts a little off both ends of whole pages.
func crooked(g hca.Range, o op) hca.Range {
	lead, tail := uint64(o.c)*16%page, uint64(o.d)*16%page
	if o.c%3 == 0 {
		lead = 0
	}
	if o.d%3 == 0 || lead+tail >= page {
		tail = 0
	}
	g.Addr += lead
	g.Len -= lead + tail
	return g
}

// eachAdapter calls f with a link from each adapter of the stack, set to use
// that adapter's keys, and says what it found wrong.
func (p *program) eachAdapter(s *stack, f func(l *link, a adapter) error) error {
	for i, a := range s.adapters {
		l := p.links[a]
		l.adapter = i
		wrong := l.wrong
		if err := f(l, a); err != nil {
			return fmt.Errorf("adapter %d of %d: %w", i+1, len(s.adapters), err)
		}
		if l.wrong != wrong {
			return errors.New(l.first)
		}
	}
	return nil
}

// exchange lets the adapters read and write g, which nothing was done to since
// its Region was got.
func (p *program) exchange(s *stack, r *regcache.Region, g hca.Range) error {
	first, n := 0, 0
	if g.Addr >= p.base && g.End() <= p.base+modelPages*page {
		first, n = p.within(g)
	}
	switch {
	case p.all(first, n, usable):
		if err := p.same(g); err != nil {
			return err
		}
		err := p.eachAdapter(s, func(l *link, _ adapter) error { return l.check(r, bytesAt(g)) })
		copy(p.model(g), bytesAt(g))
		return err
	case !p.all(first, n, mapped):
		return nil
	}
	// The program may not write there, or not even read. Pins do not mind; on
	// demand the adapter may do what the program may.
	return p.eachAdapter(s, func(l *link, a adapter) error {
		if a.follows && !p.all(first, n, readable) {
			return nil // the error would break the connection
		}
		got, err := l.see(r, g)
		if err != nil {
			return fmt.Errorf("the adapter cannot read %v: %w", g, err)
		}
		return differ("what the adapter saw at", g, got, p.model(g))
	})
}

// slot is the cache of a step.
func (p *program) slot(o op) (int, *slot, *regcache.Cache) {
	i := int(o.c^o.d) % len(p.slots)
	return i, p.slots[i], p.slots[i].cache.Load()
}

func access(o op) hca.Access {
	return []hca.Access{allWays, allReads, hca.LocalWrite, hca.LocalWrite | hca.RemoteWrite, allWays, hca.LocalRead}[int(o.d)%6]
}

// judge is what is to be said of a Get's error: nil if it was to be expected.
func (p *program) judge(err error, s *stack, whole, mapped bool) error {
	switch {
	case errors.Is(err, hca.ErrClosed) && p.crowd: // another thread has closed the cache
		return nil
	case !whole && errors.Is(err, hca.ErrBadAddress):
		return nil
	}
	return p.k.excuse(err)
}

// got checks what a Get of g answers with before anything is done with it. If it
// is an error that was to be expected, the answer is errIdle.
func (p *program) got(s *stack, r *regcache.Region, err error, g hca.Range, a hca.Access, first, n int) error {
	whole, there := p.all(first, n, usable), p.all(first, n, mapped)
	if err != nil {
		if err = p.judge(err, s, whole, there); err == nil {
			err = errIdle
		}
		return err
	}
	switch {
	case !there && !s.follows():
		return fmt.Errorf("%v is not mapped throughout, and Get works", g)
	case !r.Range().Contains(g) || !r.Access().Has(a):
		return fmt.Errorf("Get(%v, %v) answers with %v, %v", g, a, r.Range(), r.Access())
	}
	return nil
}

// use has a Region that the program has just got used, and holds or releases it.
func (p *program) use(h *heldRegion, hold bool) error {
	first, n := p.within(h.g)
	if p.all(first, n, usable) {
		p.recent[h.g.Addr/page%4] = h.g
	}
	if err := p.exchange(h.s, h.r, h.g); err != nil {
		h.release()
		return err
	}
	if hold && p.all(first, n, mapped) && len(p.held) < 6 {
		h.intact = true
		p.held = append(p.held, h)
		return nil
	}
	h.release()
	return nil
}

// fromHeap draws on the Go heap.
func (p *program) fromHeap(o op) []byte {
	b := p.heap[o.a%4]
	if len(b) > 0 && o.b%2 == 0 {
		b = b[int(o.c)%len(b):]
	}
	return b
}

func (p *program) step(o op) error {
	first, n := span(o.a, o.b)
	g := p.at(first, n)
	switch o.kind {
	case opMap, opMapOver:
		return p.mapAt(o, first, n)
	case opUnmap:
		mem, _ := p.by(o, [2]int{first, n})
		if err := mem.munmap(g); err != nil {
			return err
		}
		p.set(first, n, modelPage{})
	case opMove, opMoveOver:
		return p.move(o, first, n)
	case opShrink:
		if n = p.oneMapping(first, n); !mapped(p.pages[first]) || n < 2 {
			return errIdle
		}
		owned := p.all(first, n, isOwned)
		mem, _ := p.by(o, [2]int{first, n})
		if _, err := mem.mremap(p.at(first, n), page, 0, 0); err != nil {
			return err
		}
		p.own(first, 1, owned)
		p.set(first+1, n-1, modelPage{})
	case opGrow:
		return p.grow(o, first)
	case opDontNeed, opRemove, opFree, opGuard, opHarmless:
		return p.advise(o, first, n)
	case opProtect:
		// In pieces that were mapped together: what is protected is a mapping
		// of its own from then on.
		if n = p.oneMapping(first, n); !mapped(p.pages[first]) {
			return errIdle
		}
		prot := []int{readWrite, unix.PROT_READ, unix.PROT_NONE, readWrite}[o.c%4]
		g = p.at(first, n)
		if _, _, errno := unix.Syscall(unix.SYS_MPROTECT, uintptr(g.Addr), uintptr(g.Len), uintptr(prot)); errno != 0 {
			return fmt.Errorf("mprotect(%v): %w", g, errno)
		}
		p.eachHeld(g, func(h *heldRegion) { h.whole = false })
		p.next++
		for i := range n {
			p.pages[first+i].mapping, p.pages[first+i].prot = p.next, prot
		}
	case opSettled:
		m, is := p.k.mon.(*intercept.Monitor)
		if !is {
			return errIdle
		}
		return m.Settled(g)
	case opBreak:
		if b := &p.brk; !b.ours() {
			return errIdle
		}
		p.disturb(hca.Range{Addr: p.brk.base, Len: breakPages * page})
		return p.brk.move(int(o.a) % (breakPages + 1))
	case opUseBreak:
		return p.useBreak(o)
	case opCommons:
		return p.commons(o)
	case opAdopt:
		m, is := p.k.mon.(*intercept.Monitor)
		if !is || p.k.owned || p.k.name == unseen.name {
			return errIdle // a raw munmap of it would break the contract
		}
		// For a moment it is owned: nobody takes it away meanwhile but us.
		if err := m.Adopt(g); err != nil {
			return err
		}
		err := p.step(op{opUse, o.a, o.b, o.c, o.d})
		if err == errIdle {
			err = nil
		}
		p.own(first, n, false)
		return errors.Join(err, m.Disown(g))
	case opWrite:
		if first, n, g = p.buffer(o); !p.all(first, n, usable) {
			return errIdle
		}
		p.write(g)
	case opUse, opUseAgain, opHold, opView, opViewHold:
		return p.get(o)
	case opRow:
		for i := range modelPages {
			if at := (first + i) % modelPages; mapped(p.pages[at]) {
				if err := p.step(op{opUse, uint8(at), 0, 0, 0}); err != nil && err != errIdle {
					return err
				}
			}
		}
	case opUseHeld:
		if len(p.held) == 0 {
			return errIdle
		}
		h := p.held[int(o.a)%len(p.held)]
		if h.intact {
			return p.exchange(h.s, h.r, h.g)
		}
		// Its keys are good until its Release, whatever they lead to.
		return p.eachAdapter(h.s, func(l *link, a adapter) error {
			if a.follows {
				return nil
			}
			_, err := l.see(h.r, h.g)
			return err
		})
	case opRelease:
		if len(p.held) == 0 {
			return errIdle
		}
		i := int(o.a) % len(p.held)
		p.held[i].release()
		p.held = append(p.held[:i], p.held[i+1:]...)
	case opBatch:
		return p.batch(o)
	case opList:
		return p.list(o)
	case opViewDrop, opViewClose:
		return p.view(o)
	case opPost, opPoll, opWait, opCancel, opQueueClose:
		return p.queue(o)
	case opHeapNew:
		p.heap[o.a%4] = make([]byte, 1+int(o.b)*int(o.c))
	case opHeapUse, opHeapRange:
		return p.useHeap(o)
	case opGC:
		if o.a%4 == 0 {
			debug.FreeOSMemory()
		} else {
			runtime.GC()
		}
	case opTrim:
		_, _, c := p.slot(o)
		c.Trim(uint64(o.a) * page)
	case opFlush:
		_, _, c := p.slot(o)
		c.Flush()
	case opInvalidate:
		// What is held is out of look-up then, and as good as before.
		_, _, c := p.slot(o)
		c.Invalidate(g)
	case opSweep:
		if o.a%4 != 0 {
			return errIdle
		}
		_, _, c := p.slot(o)
		c.Sweep()
	case opClose:
		return p.close(o)
	}
	return nil
}

func (p *program) mapAt(o op, first, n int) error {
	flags := isFree
	if o.kind == opMapOver {
		flags = unix.MAP_FIXED
	} else if !p.all(first, n, free) {
		return errIdle
	}
	g := p.at(first, n)
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
	mem, owned := p.by(o, [2]int{first, n})
	if _, err := mem.mmap(g, readWrite, m.flags|flags, fd); err != nil {
		return err
	}
	p.set(first, n, p.fresh(kind, readWrite, owned))
	clear(p.model(g))
	p.write(g)
	return nil
}

func (p *program) move(o op, first, n int) error {
	if n = p.oneMapping(first, n); !mapped(p.pages[first]) {
		return errIdle
	}
	to := int(o.c) % (modelPages - n + 1)
	if to < first+n && first < to+n || o.kind == opMove && !p.all(to, n, free) {
		return errIdle // the kernel does not move a mapping over itself
	}
	mem, _ := p.by(o, [2]int{first, n}, [2]int{to, n})
	_, err := mem.mremap(p.at(first, n), uint64(n)*page, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, p.at(to, n).Addr)
	if errors.Is(err, unix.EFAULT) && p.crowd && p.k.seesAll() {
		// Memory that is watched in part cannot be moved, and a neighbour
		// that was watched while this was mapped can have that effect. How
		// far the kernel came is not known.
		p.m.refused.Add(1)
		err = errors.Join(mem.munmap(p.at(first, n)), mem.munmap(p.at(to, n)))
		p.set(first, n, modelPage{})
		p.set(to, n, modelPage{})
		return err
	}
	if err != nil {
		return err
	}
	p.set(to, n, p.fresh(p.pages[first].kind, p.pages[first].prot, p.all(first, n, isOwned)))
	p.set(first, n, modelPage{})
	copy(p.model(p.at(to, n)), p.model(p.at(first, n)))
	return nil
}

// grow makes private memory longer, from its end into free space.
func (p *program) grow(o op, first int) error {
	last := first
	for last < modelPages && p.pages[last].mapping == p.pages[first].mapping {
		last++
	}
	pg := p.pages[first]
	if !mapped(pg) || memories[pg.kind].flags&unix.MAP_PRIVATE == 0 || memories[pg.kind].file || last == modelPages || mapped(p.pages[last]) {
		return errIdle
	}
	old := p.at(first, last-first)
	owned := p.all(first, last-first, isOwned)
	mem, _ := p.by(o, [2]int{first, last - first})
	if _, err := mem.mremap(old, old.Len+page, 0, 0); err != nil {
		if errors.Is(err, unix.ENOMEM) { // not the last page of its mapping in the kernel's eyes
			return errIdle
		}
		if errors.Is(err, unix.EFAULT) && p.crowd && p.k.seesAll() { // watched in part, as above
			p.m.refused.Add(1)
			return errIdle
		}
		return err
	}
	// What was cached of it is still good.
	p.pages[last] = p.pages[first]
	p.own(first, last-first+1, owned)
	p.next++ // what comes behind it may be a piece of the same mapping, cut off before
	for i := first; i <= last; i++ {
		p.pages[i].mapping = p.next
	}
	clear(p.model(p.at(last, 1)))
	return nil
}

const madvGuardRemove = 103

func (p *program) advise(o op, first, n int) error {
	did := false
	for i := first; i < first+n; i++ {
		pg := p.pages[i]
		m := memories[pg.kind]
		private := m.flags&unix.MAP_PRIVATE != 0
		mem, announced := p.by(o, [2]int{i, 1})
		announced = announced || p.k.owned
		advice := 0
		switch {
		case !mapped(pg):
		case o.kind == opDontNeed:
			advice = []int{unix.MADV_DONTNEED, unix.MADV_DONTNEED_LOCKED}[o.c&1]
		case o.kind == opRemove && !private && usable(pg):
			advice = unix.MADV_REMOVE
		case o.kind == opFree && private && !m.file && usable(pg):
			advice = unix.MADV_FREE
		case o.kind == opGuard && private && !m.file:
			advice = unix.MADV_GUARD_INSTALL
		case o.kind == opHarmless && o.c%3 == 0 && !private:
			// What io_uring wrote to a page that was only read before is lost
			// when the page is given up: the kernel holds it for clean.
		case o.kind == opHarmless:
			advice = []int{unix.MADV_PAGEOUT, unix.MADV_COLD, unix.MADV_WILLNEED}[o.c%3]
		}
		if advice == 0 {
			continue
		}
		one := p.at(i, 1)
		var err error
		switch {
		case advice == unix.MADV_GUARD_INSTALL:
			err = p.guard(mem, one, announced)
		case advice == unix.MADV_DONTNEED && o.c&2 != 0 && !announced:
			err = processMadvise(one, advice)
		default:
			err = mem.madvise(one, advice)
		}
		switch {
		case errors.Is(err, unix.EINVAL) && advice == unix.MADV_GUARD_INSTALL:
			continue // before Linux 6.13
		case (errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL)) && o.c&2 != 0 && !announced && o.kind == opDontNeed:
			continue // nor on oneself
		case errors.Is(err, unix.EBADF) && advice == unix.MADV_WILLNEED:
			continue
		case err != nil:
			return fmt.Errorf("madvise(%v, %d): %w", one, advice, err)
		}
		if did = true; o.kind == opHarmless {
			continue
		}
		p.disturb(one)
		switch {
		case advice == unix.MADV_FREE:
			p.write(one) // what is there is the kernel's to choose, until it is written
		case private || advice == unix.MADV_REMOVE:
			clear(p.model(one))
		}
	}
	if !did {
		return errIdle
	}
	return nil
}

// guard puts a guard on memory, which throws it away, and takes it off again.
// userfaultfd does not see that, so whoever does it has to say so.
func (p *program) guard(mem mapper, g hca.Range, announced bool) error {
	if m, is := p.k.mon.(*intercept.Monitor); is && !announced {
		defer m.Begin(g, hca.CauseDiscard).End()
	}
	if err := mem.madvise(g, unix.MADV_GUARD_INSTALL); err != nil {
		return err
	}
	return raw{}.madvise(g, madvGuardRemove)
}

// processMadvise advises about this process's memory as about another's.
func processMadvise(g hca.Range, advice int) error {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	iov := unix.Iovec{Base: (*byte)(ptr(g.Addr))}
	iov.SetLen(int(g.Len))
	_, _, errno := unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1, uintptr(advice), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func (p *program) useBreak(o op) error {
	b := &p.brk
	if !b.ours() || b.pages == 0 {
		return errIdle
	}
	first := int(o.a) % b.pages
	n := 1 + int(o.b)%(b.pages-first)
	g := crooked(hca.Range{Addr: b.base + uint64(first)*page, Len: uint64(n) * page}, o)
	_, s, c := p.slot(o)
	r, err := c.Get(g, access(o))
	if err != nil {
		return p.judge(err, s.stack, true, true)
	}
	defer r.Release()
	if !r.Range().Contains(g) || !r.Access().Has(access(o)) {
		return fmt.Errorf("Get(%v, %v) answers with %v, %v", g, access(o), r.Range(), r.Access())
	}
	return p.exchange(s.stack, r, g)
}

// commons takes a page that nobody has, uses it and unmaps it. It may be free
// because another thread's munmap of it is still on its way back: the case for
// which the probe is there.
func (p *program) commons(o op) (err error) {
	g := hca.Range{Addr: place(31) + uint64(o.a%2)*page, Len: page}
	mem, _ := p.by(o)
	if _, err := mem.mmap(g, readWrite, memories[o.c%2].flags|isFree, -1); err != nil {
		if errors.Is(err, unix.EEXIST) {
			return errIdle
		}
		return err
	}
	defer func() { err = errors.Join(err, mem.munmap(g)) }()
	i, s, c := p.slot(o)
	for range 2 {
		p.links[s.stack.adapters[0]].write(bytesAt(g))
		h := &heldRegion{s: s.stack, g: g}
		if o.b&1 == 0 {
			if h.view, err = p.viewOf(i, c); err == nil {
				h.r, err = h.view.Get(g, access(o))
			}
		} else {
			h.r, err = c.Get(g, access(o))
		}
		if err != nil {
			return p.judge(err, s.stack, true, true)
		}
		err = p.eachAdapter(s.stack, func(l *link, _ adapter) error { return l.check(h.r, bytesAt(g)) })
		h.release()
		if err != nil {
			return err
		}
	}
	return nil
}

// get is a step with one Get, of a cache or of its View.
func (p *program) get(o op) error {
	first, n, g := p.buffer(o)
	if o.kind == opUseAgain {
		if g = p.recent[o.a%4]; g.Empty() {
			return errIdle
		}
		first, n = p.within(g)
	}
	i, s, c := p.slot(o)
	h := &heldRegion{s: s.stack, g: g}
	var err error
	if o.kind == opView || o.kind == opViewHold {
		if h.view, err = p.viewOf(i, c); err == nil {
			h.r, err = h.view.Get(g, access(o))
		}
	} else {
		h.r, err = c.Get(g, access(o))
	}
	if err := p.got(s.stack, h.r, err, g, access(o), first, n); err != nil {
		if h.r != nil {
			h.release()
		}
		return err
	}
	return p.use(h, o.kind == opHold || o.kind == opViewHold)
}

// several are ranges that have nothing to do with each other.
func (p *program) several(o op) (gs []hca.Range) {
	for i := range 2 + o.b%3 {
		_, _, g := p.buffer(op{opUse, o.a + 5*i, o.b + i, o.c, o.d})
		gs = append(gs, g)
	}
	return gs
}

func (p *program) batch(o op) error {
	gs := p.several(o)
	_, s, c := p.slot(o)
	out := make([]*regcache.Region, len(gs))
	err := c.GetBatch(gs, access(o), out)
	if err != nil {
		whole := true
		for _, g := range gs {
			first, n := p.within(g)
			whole = whole && p.all(first, n, usable)
		}
		return p.judge(err, s.stack, whole, whole)
	}
	var errs []error
	for i, g := range gs {
		first, n := p.within(g)
		if err := p.got(s.stack, out[i], nil, g, access(o), first, n); err != nil {
			errs = append(errs, err)
		} else {
			errs = append(errs, p.exchange(s.stack, out[i], g))
		}
	}
	for _, r := range out {
		r.Release()
	}
	return errors.Join(errs...)
}

func (p *program) list(o op) error {
	first, n, g := p.buffer(o)
	_, s, c := p.slot(o)
	l, err := c.GetList(g, access(o), regcache.ListConfig{Piece: page * uint64(1+o.c%3), Parallel: 1 + int(o.d)%3})
	if err != nil {
		return p.judge(err, s.stack, p.all(first, n, usable), true)
	}
	defer l.Release()
	at := g.Addr
	for _, r := range l.Regions() {
		if at == g.End() || !r.Range().Contains(hca.Range{Addr: at, Len: 1}) {
			continue // the same as one before, or one that overlaps it
		}
		piece := hca.Range{Addr: at, Len: min(r.Range().End(), g.End()) - at}
		first, n := p.within(piece)
		if err := p.got(s.stack, r, nil, piece, access(o), first, n); err != nil {
			return err
		}
		if err := p.exchange(s.stack, r, piece); err != nil {
			return err
		}
		at = piece.End()
	}
	if at != g.End() {
		return fmt.Errorf("GetList(%v) ends at %#x", g, at)
	}
	return nil
}

func (p *program) viewOf(i int, c *regcache.Cache) (*regcache.View, error) {
	e := &p.ends[i]
	if e.view != nil {
		if e.viewOf != c {
			return nil, errors.New("a cache was closed that had a View open")
		}
		return e.view, nil
	}
	v, err := c.NewView(fmt.Sprintf("program at %#x", p.base))
	if err == nil {
		e.view, e.viewOf = v, c
	}
	return v, err
}

func (p *program) view(o op) error {
	i, _, _ := p.slot(o)
	e := &p.ends[i]
	if e.view == nil {
		return errIdle
	}
	if o.kind == opViewDrop {
		e.view.Drop()
		return nil
	}
	out := 0
	for _, h := range p.held {
		if h.view == e.view {
			out++
		}
	}
	err := e.view.Close()
	if err == nil {
		e.view = nil
	}
	if errors.Is(err, hca.ErrBusy) && out > 0 {
		return nil // or it works: what the View had no room for is not its own
	}
	return err
}

func (p *program) queue(o op) error {
	i, s, c := p.slot(o)
	e := &p.ends[i]
	if e.queue != nil && (e.queueOf != c || o.kind == opQueueClose) {
		err := e.queue.Close()
		e.queue, e.posted = nil, nil
		return err
	}
	if e.queue == nil && o.kind == opPost {
		q, err := c.NewQueue(regcache.QueueConfig{Depth: 16, Workers: 1 + int(o.a)%3})
		if err != nil {
			return err
		}
		e.queue, e.queueOf, e.posted = q, c, map[uint64]*heldRegion{}
	}
	if e.queue == nil || o.kind != opPost && len(e.posted) == 0 {
		return errIdle
	}
	switch o.kind {
	case opPost:
		for _, g := range p.several(o) {
			first, n := p.within(g)
			e.next++
			t, err := e.queue.Post(e.next, g, access(o))
			if errors.Is(err, hca.ErrQueueFull) && len(e.posted) == 16 {
				return nil
			}
			if err != nil {
				return err
			}
			e.posted[e.next] = &heldRegion{s: s.stack, g: g, intact: true, whole: p.all(first, n, usable), ticket: t}
		}
	case opCancel:
		for _, h := range e.posted {
			if e.queue.Cancel(h.ticket) {
				h.dropped = true
				break
			}
		}
	case opPoll:
		return p.poll(e, 1+int(o.a)%4)
	case opWait:
		for len(e.posted) > 0 {
			if err := e.queue.Wait(context.Background()); err != nil { // the child's hard limit bounds it
				return err
			}
			if err := p.poll(e, 16); err != nil {
				return err
			}
		}
	}
	return nil
}

// poll uses what was posted and is there.
func (p *program) poll(e *end, n int) error {
	out := make([]regcache.Done, n)
	var errs []error
	for _, d := range out[:e.queue.Poll(out)] {
		h := e.posted[d.ID]
		if delete(e.posted, d.ID); h == nil {
			errs = append(errs, fmt.Errorf("outcome %d was not posted, or comes twice", d.ID))
			continue
		}
		switch {
		case errors.Is(d.Err, regcache.ErrCanceled) && h.dropped:
		case errors.Is(d.Err, hca.ErrClosed) && p.crowd:
		case d.Err != nil:
			errs = append(errs, p.judge(d.Err, h.s, h.whole, h.whole))
		case !d.Region.Range().Contains(h.g):
			errs = append(errs, fmt.Errorf("Post(%v) answers with %v", h.g, d.Region.Range()))
			d.Region.Release()
		case h.intact:
			h.r = d.Region
			errs = append(errs, p.use(h, d.ID%4 == 0))
		default: // made when the memory was this or that
			d.Region.Release()
		}
	}
	return errors.Join(errs...)
}

func (p *program) useHeap(o op) error {
	b := p.fromHeap(o)
	if len(b) == 0 {
		return errIdle
	}
	for _, l := range p.links {
		l.write(b)
		break
	}
	i, s, c := p.slot(o)
	var r *regcache.Region
	var v *regcache.View
	var err error
	switch {
	case o.kind == opHeapRange:
		r, err = c.Get(hca.RangeOf(b), access(o))
	case o.c%4 == 0:
		if v, err = p.viewOf(i, c); err == nil {
			r, err = v.GetBytes(b, access(o))
		}
	default:
		r, err = c.GetBytes(b, access(o))
	}
	if err != nil {
		return p.judge(err, s.stack, true, true)
	}
	h := heldRegion{r: r, view: v}
	defer h.release()
	return p.eachAdapter(s.stack, func(l *link, _ adapter) error { return l.check(r, b) })
}

// close closes a cache, if nobody uses it, and makes another in its place.
func (p *program) close(o op) error {
	i, s, c := p.slot(o)
	e := &p.ends[i]
	if e.view != nil && o.a%2 == 0 { // else it is busy
		if err := p.view(op{opViewClose, o.a, o.b, o.c, o.d}); err != nil {
			return err
		}
	}
	if e.queue != nil {
		if err := p.queue(op{opQueueClose, o.a, o.b, o.c, o.d}); err != nil {
			return err
		}
	}
	mine := e.view != nil
	for _, h := range p.held {
		mine = mine || h.s == s.stack // perhaps
	}
	switch err := p.m.closeCache(c); {
	case errors.Is(err, hca.ErrBusy) && (mine || p.crowd), errors.Is(err, hca.ErrClosed) && p.crowd:
		return errIdle
	case err != nil:
		return err
	}
	p.m.closed.Add(1)
	return s.renew()
}

func (p *program) run(ops []op) error {
	for i, o := range ops {
		switch err := p.step(o); err {
		case nil:
			p.m.done[o.kind].Add(1)
		case errIdle:
		default:
			return fmt.Errorf("step %d, %v: %w", i, o, err)
		}
		p.m.steps.Add(1)
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
	var errs []error
	for _, h := range p.held {
		h.release()
	}
	for _, e := range p.ends {
		if e.view != nil {
			errs = append(errs, e.view.Close())
		}
		if e.queue != nil {
			errs = append(errs, e.queue.Close())
		}
	}
	mem := p.k.mem
	if m, is := p.k.mon.(*intercept.Monitor); is && p.k.mixed {
		mem = calls{m}
	}
	return errors.Join(append(errs, mem.munmap(p.at(0, modelPages)))...)
}
