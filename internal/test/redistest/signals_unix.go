//go:build unix

package redistest

import "syscall"

// The signals that make a process stand still and go on.
const (
	stop = syscall.SIGSTOP
	goOn = syscall.SIGCONT
)
