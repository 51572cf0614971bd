package bpf

// argAt is where struct pt_regs has the arguments of a system call: x0 to x5.
var argAt = [6]int16{0, 8, 16, 24, 32, 40}

// numberField is where the kernel keeps the number of a task's system call.
const numberField = "pt_regs.syscallno"

// narrow, compat and plain have nothing to do: a process of 64 bits cannot
// make system calls of 32 bits here.
func (b *builder) narrow()       {}
func (b *builder) compat(string) {}
func (b *builder) plain()        {}

// oldCalls are those of older processors: none.
func oldCalls() []call { return nil }
