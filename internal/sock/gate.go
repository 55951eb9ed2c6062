package sock

import "sync/atomic"

// gate counts the goroutines that may be inside a system call on a descriptor.
// A descriptor number is given to somebody else the moment it is closed, so it
// must be closed by whoever leaves last, never under a goroutine that is about
// to use it. All methods may be called from any goroutine.
type gate struct {
	state atomic.Uint64 // flags and number of users
}

const (
	gateShut  = 1 << 63 // no one enters any more
	gateMuted = 1 << 62 // no receiver enters any more
	gateUsers = gateMuted - 1
)

// enter reports whether the caller may use the descriptor; it must then leave.
func (g *gate) enter(barred uint64) bool {
	for {
		s := g.state.Load()
		if s&barred != 0 {
			return false
		}
		if g.state.CompareAndSwap(s, s+1) {
			return true
		}
	}
}

// leave reports whether the caller was the last user of a gate that is shut.
// It does so to exactly one caller.
func (g *gate) leave() bool {
	s := g.state.Add(^uint64(0))
	return s&gateShut != 0 && s&gateUsers == 0
}

// has reports whether one of the flags is set.
func (g *gate) has(flags uint64) bool { return g.state.Load()&flags != 0 }

// mark sets a flag and enters in one step, so that the caller can still wake
// others through the descriptor. It reports false, without entering, when the
// flag was set before or the gate is shut.
func (g *gate) mark(flag uint64) bool {
	for {
		s := g.state.Load()
		if s&(flag|gateShut) != 0 {
			return false
		}
		if g.state.CompareAndSwap(s, (s|flag)+1) {
			return true
		}
	}
}
