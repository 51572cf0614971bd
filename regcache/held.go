package regcache

import "runtime"

// onGoHeap reports whether p points into memory that the Go runtime allocated
// on its heap, or into the data of the program itself, which is never unmapped.
// Keeping p keeps that memory, and while it is kept it is neither moved nor
// given back to the kernel.
//
// The proof is public: runtime.AddCleanup accepts just such pointers. On any
// other (mapped memory, C memory, a goroutine's stack) it panics, before it has
// done anything.
func onGoHeap(p *byte) (yes bool) {
	defer func() {
		if recover() != nil {
			yes = false
		}
	}()
	runtime.AddCleanup(p, func(struct{}) {}, struct{}{}).Stop()
	return true
}
