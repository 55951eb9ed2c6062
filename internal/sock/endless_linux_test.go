//go:build linux && !sockportable

package sock

import (
	"testing"

	"golang.org/x/sys/unix"
)

// endless takes the time-out off a socket, so that nothing but the wake-up can
// end a blocked receive.
func endless(t *testing.T, c *Conn) {
	t.Helper()
	if err := unix.SetsockoptTimeval(c.sock.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{}); err != nil {
		t.Fatal(err)
	}
}
