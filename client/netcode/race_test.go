//go:build race

package netcode_test

// raceEnabled says that the race detector, which allocates, is on.
const raceEnabled = true
