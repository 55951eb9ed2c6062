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
