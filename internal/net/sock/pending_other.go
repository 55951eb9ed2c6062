//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package sock

import "net"

// hasPending reports whether a connection may wait to be accepted.
func hasPending(*net.TCPListener) bool { return true }
