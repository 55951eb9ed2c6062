package sock

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// maxCPU is the number of CPUs a unix.CPUSet can name.
const maxCPU = 1024

// PinThread locks the calling goroutine to its thread and the thread to one
// CPU, 0 <= cpu < 1024. There is no way back: the thread ends with the
// goroutine, so that no other goroutine inherits the CPU. On error nothing has
// changed.
func PinThread(cpu int) error {
	if cpu < 0 || cpu >= maxCPU {
		return fmt.Errorf("sock: pin to cpu %d: %w", cpu, unix.EINVAL)
	}
	var set unix.CPUSet
	set.Set(cpu)
	runtime.LockOSThread()
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("sock: pin to cpu %d: %w", cpu, err)
	}
	return nil
}
