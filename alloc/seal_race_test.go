//go:build race

package alloc_test

// raceEnabled: the race detector allocates on its own account.
const raceEnabled = true
