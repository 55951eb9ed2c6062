//go:build !race

package proto

// raceEnabled is true in builds with the race detector, which allocates.
const raceEnabled = false
