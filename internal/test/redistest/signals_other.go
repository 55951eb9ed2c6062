//go:build !unix

package redistest

import "os"

// Without such signals nothing can be paused: sending them fails the test.
var (
	stop = os.Interrupt
	goOn = os.Interrupt
)
