package netcode

// Acks says which snapshots a client has processed, by their ticks.
type Acks struct {
	Newest uint32
	Mask   uint32 // bit i: the snapshot of tick Newest-i; 0 if there was none yet
}

// Has reports whether the snapshot of a tick is acknowledged.
func (a Acks) Has(tick uint32) bool {
	back := a.Newest - tick
	return back < 32 && a.Mask&(1<<back) != 0
}

// add notes a tick after Newest, or the first.
func (a *Acks) add(tick uint32) {
	ahead := tick - a.Newest
	if a.Mask == 0 || ahead >= 32 {
		*a = Acks{Newest: tick, Mask: 1}
		return
	}
	*a = Acks{Newest: tick, Mask: a.Mask<<ahead | 1}
}

// remove takes a tick back.
func (a *Acks) remove(tick uint32) {
	if back := a.Newest - tick; back < 32 {
		a.Mask &^= 1 << back
	}
}
