//go:build !linux

package sock

import (
	"errors"
	"fmt"
)

// canShare is false: SO_REUSEPORT of macOS and most BSDs hands all unicast
// datagrams of a port to one of its sockets, so that more than one has no use.
const canShare = false

func setShared(int) error { return errors.ErrUnsupported }

func setOptions(int, *Config, bool) (Capabilities, error) { return Capabilities{}, nil }

// PinThread exists on Linux only; elsewhere it returns errors.ErrUnsupported.
func PinThread(cpu int) error {
	return fmt.Errorf("sock: pin to cpu %d: %w", cpu, errors.ErrUnsupported)
}

// reserve does nothing: there is no portable way here.
func reserve(int, int64) error { return nil }
