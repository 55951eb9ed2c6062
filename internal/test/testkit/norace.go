//go:build !race

package testkit

// RaceEnabled reports whether the race detector is on. It allocates and is slow.
const RaceEnabled = false
