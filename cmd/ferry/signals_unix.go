//go:build unix

package main

import (
	"os"
	"syscall"
)

// upgradeSignals let a new process take over.
var upgradeSignals = []os.Signal{syscall.SIGUSR2}
