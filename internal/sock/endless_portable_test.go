//go:build !linux || sockportable

package sock

import "testing"

// endless does nothing: the portable build sets the time-out for each call.
func endless(*testing.T, *Conn) {}
