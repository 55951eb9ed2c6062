//go:build race

package utp

// raceEnabled says that the race detector, which allocates, is on.
const raceEnabled = true
