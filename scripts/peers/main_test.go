package main

import (
	"os"
	"testing"
)

// TestMain lets the test binary stand in for the program: servers are started
// through "peers pin", and the null relay is "peers null".
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "pin" || os.Args[1] == "null") {
		main()
		return
	}
	os.Exit(m.Run())
}
