//go:build !race

package client

// raceEnabled says that the race detector, which allocates, is on.
const raceEnabled = false
