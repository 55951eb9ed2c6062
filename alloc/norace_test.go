//go:build !race

package alloc

// raceEnabled: the race detector is slow, and allocates on its own account.
const raceEnabled = false
