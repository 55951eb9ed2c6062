//go:build race

package sock

// raceEnabled says that the race detector is on; it allocates on its own.
const raceEnabled = true
