package regcache

import (
	"math"

	"github.com/prometheus/procfs"

	"example.com/holdfast/hca"
)

// alone says what the default leaves out: other caches and processes are not asked.
const alone = ", as if this cache were alone"

// What is kept pinned where the machine cannot be asked.
const unknownMachineLimit uint64 = 1 << 30

// machineLimit is how many bytes may be kept pinned if nobody says, and where
// that comes from. The lock limit binds unless the process has CAP_IPC_LOCK
// (capabilities(7)); a quarter of it is left to the rest of the process. The
// kernel counts it per user for some devices, so another process of the user
// may take its share: then registering fails and the cache gives back.
func machineLimit() (bytes uint64, from string) {
	const capIPCLock = 1 << 14
	self, err := procfs.Self()
	if err != nil {
		return unknownMachineLimit, "default"
	}
	limits, err := self.Limits()
	status, err2 := self.NewStatus()
	if err == nil && err2 == nil && status.CapEff&capIPCLock == 0 && limits.LockedMemory != math.MaxUint64 {
		return max(limits.LockedMemory/4*3, 4096), "3/4 of RLIMIT_MEMLOCK " + hca.Bytes(limits.LockedMemory).String() + alone
	}
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return unknownMachineLimit, "default"
	}
	mem, err := fs.Meminfo()
	if err != nil || mem.MemTotalBytes == nil {
		return unknownMachineLimit, "default"
	}
	total := *mem.MemTotalBytes
	return total / 4, "1/4 of " + hca.Bytes(total).String() + " of memory" + alone
}
