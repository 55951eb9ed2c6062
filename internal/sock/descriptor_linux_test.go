//go:build linux && !sockportable

package sock

import "testing"

// descriptor calls f with the descriptor of c.
func descriptor(t *testing.T, c *Conn, f func(fd int)) {
	t.Helper()
	f(c.sock.fd)
}
