package utp

import "fmt"

// Stage is one step that a payload passes on a pipeline.
type Stage uint8

// The stages.
const (
	// StageNull does nothing.
	StageNull Stage = iota
	// StageFragmentation cuts a message into packets and puts it together
	// again. A packet that is missing or out of order costs the message.
	StageFragmentation
	// StageUnreliableSequenced drops what is older than the newest received.
	StageUnreliableSequenced
	// StageReliableSequenced sends again until acknowledged and delivers
	// everything once and in order.
	StageReliableSequenced
)

// String returns the name of the stage, or stage(n).
func (s Stage) String() string {
	switch s {
	case StageNull:
		return "null"
	case StageFragmentation:
		return "fragmentation"
	case StageUnreliableSequenced:
		return "unreliable sequenced"
	case StageReliableSequenced:
		return "reliable sequenced"
	}
	return fmt.Sprintf("stage(%d)", uint8(s))
}

// Pipeline is the order in which a payload passes stages when it is sent. It
// has at most one fragmentation and at most one sequenced stage, fragmentation
// first; null stages may stand anywhere. Nothing on the wire says what a
// pipeline is: both ends must list the same ones in the same order.
type Pipeline []Stage

// layout is a pipeline as the code needs it.
type layout struct {
	fragment bool
	order    Stage // StageNull, StageUnreliableSequenced or StageReliableSequenced
	wide     bool  // the reliable mask has 8 bytes
	packet   int   // payload bytes in one packet, behind all headers
	limit    int   // payload bytes in one Send
}

// layoutOf checks a pipeline. The configuration has its defaults.
func (c Config) layoutOf(p Pipeline) (layout, error) {
	l := layout{wide: c.Window > narrowWindow, packet: c.room() - DataLen}
	for _, s := range p {
		switch {
		case s == StageNull:
		case s == StageFragmentation && !l.fragment && l.order == StageNull:
			l.fragment = true
			l.packet -= FragmentLen
		case s == StageUnreliableSequenced && l.order == StageNull:
			l.order = s
			l.packet -= SequencedLen
		case s == StageReliableSequenced && l.order == StageNull:
			l.order = s
			l.packet -= reliableLen(l.wide)
		default:
			return layout{}, fmt.Errorf("%w: stage %v does not fit into pipeline %v", ErrConfig, s, p)
		}
	}
	l.limit = l.packet
	if l.fragment {
		// A message may not need more packets than can ever be under way.
		most := c.SendQueue / packetsPerSend
		if l.order == StageReliableSequenced {
			most = min(most, c.Window)
		}
		l.limit = min(c.FragmentCapacity, most*l.packet)
	}
	return l, nil
}

// lane is what a connection remembers of one pipeline.
type lane struct {
	sequence uint16 // of the next sequenced packet
	newest   uint16 // sequenced packet received; starts at 65535
	fragment uint16 // sequence of the next fragment
	assembly assembly
	reliable *reliable // nil if the pipeline has no such stage
}

func (e *Endpoint) newLanes() []lane {
	lanes := make([]lane, len(e.layouts))
	for i, l := range e.layouts {
		if l.order == StageReliableSequenced {
			lanes[i].reliable = newReliable(e.cfg.Window)
		}
	}
	return lanes
}

// resetLanes readies the lanes for a new connection.
func (e *Endpoint) resetLanes(lanes []lane) {
	for i := range lanes {
		ln := &lanes[i]
		ln.sequence, ln.newest, ln.fragment = 0, 65535, 0
		ln.assembly.reset()
		if ln.reliable != nil {
			ln.reliable.reset(&e.pool)
		}
	}
}
