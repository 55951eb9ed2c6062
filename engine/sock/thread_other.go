//go:build !linux

package sock

import (
	"errors"
	"fmt"
	"time"
)

// PinThread is known on Linux only; here it returns errors.ErrUnsupported.
func PinThread(cpu int) error {
	return fmt.Errorf("sock: pin to cpu %d: %w", cpu, errors.ErrUnsupported)
}

// Nap blocks the caller for about d; time.Sleep is the best that there is here.
func Nap(d time.Duration) { time.Sleep(d) }
