package sock

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestPinThread pins a goroutine of its own, whose thread ends with it.
func TestPinThread(t *testing.T) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	last := -1
	for cpu := range maxCPU {
		if allowed.IsSet(cpu) {
			last = cpu
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := PinThread(last); err != nil {
			t.Errorf("PinThread(%d): %v", last, err)
			return
		}
		var got unix.CPUSet
		if err := unix.SchedGetaffinity(0, &got); err != nil || got.Count() != 1 || !got.IsSet(last) {
			t.Errorf("pinned to %d: %d CPUs, %v", last, got.Count(), err)
		}
	}()
	<-done
	for _, cpu := range []int{-1, maxCPU, maxCPU - 1} {
		if allowed.IsSet(cpu) {
			continue
		}
		if err := PinThread(cpu); err == nil {
			t.Errorf("PinThread(%d) succeeds", cpu)
		}
	}
}
