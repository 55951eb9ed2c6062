package main

import (
	"os"
	"slices"
	"testing"
)

// TestMain lets the test binary stand in for the program: servers are started
// through "peers pin", and what measures in a namespace "peers --pinned".
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{"pin", "--pinned", "frames", "embed", "bounce"}, os.Args[1]) {
		main()
		return
	}
	os.Exit(m.Run())
}
