//go:build !linux

package sock

import (
	"errors"
	"fmt"
)

// PinThread is known on Linux only; here it returns errors.ErrUnsupported.
func PinThread(cpu int) error {
	return fmt.Errorf("sock: pin to cpu %d: %w", cpu, errors.ErrUnsupported)
}
