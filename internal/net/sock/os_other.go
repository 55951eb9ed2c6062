//go:build !linux

package sock

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"
)

// canShare is false: SO_REUSEPORT of macOS and most BSDs hands all unicast
// datagrams of a port to one of its sockets, so that more than one has no use.
const canShare = false

func setShared(int) error { return errors.ErrUnsupported }

func setOptions(int, *Config, bool) (Capabilities, error) { return Capabilities{}, nil }

// PathMTU exists on Linux only; elsewhere it returns errors.ErrUnsupported.
func PathMTU(netip.Addr) (int, error) {
	return 0, fmt.Errorf("sock: path MTU: %w", errors.ErrUnsupported)
}

// PinThread exists on Linux only; elsewhere it returns errors.ErrUnsupported.
func PinThread(cpu int) error {
	return fmt.Errorf("sock: pin to cpu %d: %w", cpu, errors.ErrUnsupported)
}

// SetTimerSlack exists on Linux only; elsewhere it returns errors.ErrUnsupported.
func SetTimerSlack(time.Duration) error {
	return fmt.Errorf("sock: timer slack: %w", errors.ErrUnsupported)
}

// LinkChanges tells nothing outside of Linux: the channel is closed.
func LinkChanges() (changes <-chan struct{}, stop func()) {
	c := make(chan struct{})
	close(c)
	return c, func() {}
}

// OpenMemory exists on Linux only; elsewhere it returns errors.ErrUnsupported.
func OpenMemory(int) (*os.File, error) {
	return nil, fmt.Errorf("sock: memory: %w", errors.ErrUnsupported)
}

// ThreadTime exists on Linux only; elsewhere it returns 0.
func ThreadTime() int64 { return 0 }

// ReadClock exists on Linux only; elsewhere the state is not known.
func ReadClock() ClockState { return ClockState{} }

// reserve does nothing: there is no portable way here.
func reserve(int, int64) error { return nil }

// Thread returns 0: threads cannot be interrupted.
func Thread() int { return 0 }

// InterruptThread does nothing. A [Conn.Recv] ends by itself within 250 ms.
func InterruptThread(int) {}

// Monotonic exists on Linux only; elsewhere it returns errors.ErrUnsupported.
func Monotonic() (int64, error) {
	return 0, fmt.Errorf("sock: monotonic clock: %w", errors.ErrUnsupported)
}
