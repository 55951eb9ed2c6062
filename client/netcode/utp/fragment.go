package utp

// assembly puts the pieces of one message together.
type assembly struct {
	buf  []byte
	next uint16 // sequence of the piece that must come next
	open bool   // a first piece came, the last one not
}

func (a *assembly) reset() {
	a.buf, a.open, a.next = a.buf[:0], false, 0
}

// add takes a piece and returns the message if that is whole now. The message
// is valid until the next add.
func (a *assembly) add(h FragmentHeader, piece []byte, capacity int) (msg []byte, o Outcome, whole bool) {
	fits := a.open && h.Sequence == a.next && len(a.buf)+len(piece) <= capacity
	a.open = false
	switch {
	case h.First && h.Last:
		return piece, Taken, true
	case h.First:
		a.buf = append(a.buf[:0], piece...)
	case !fits:
		return nil, DropFragment, false
	default:
		a.buf = append(a.buf, piece...)
	}
	if h.Last {
		return a.buf, Taken, true
	}
	a.open = true
	a.next = (h.Sequence + 1) & fragmentMask
	return nil, Taken, false
}

// fragments returns how many packets a message needs.
func (l layout) fragments(size int) int {
	if !l.fragment || size <= l.packet {
		return 1
	}
	return (size + l.packet - 1) / l.packet
}
