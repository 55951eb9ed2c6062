//go:build !race

package store

// raceEnabled: the race detector is slow, and allocates on its own account.
const raceEnabled = false
