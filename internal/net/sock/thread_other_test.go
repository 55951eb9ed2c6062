//go:build !linux

package sock

import (
	"errors"
	"testing"
)

func TestPinThread(t *testing.T) {
	if err := PinThread(0); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("PinThread(0): %v", err)
	}
}

func TestTimers(t *testing.T) {
	if err := SetTimerSlack(1); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("SetTimerSlack(1): %v", err)
	}
	if n := ThreadTime(); n != 0 {
		t.Errorf("ThreadTime is %d", n)
	}
}
