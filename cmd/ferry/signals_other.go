//go:build !unix

package main

import "os"

// upgradeSignals let a new process take over: there are none.
var upgradeSignals []os.Signal
