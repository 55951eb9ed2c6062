package utp

import (
	"fmt"

	"github.com/ferryrelay/ferry/internal/utpwire"
)

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
func (s Stage) String() string { return nameOf(stageNames, "stage", uint8(s)) }

var stageNames = []string{"null", "fragmentation", "unreliable sequenced", "reliable sequenced"}

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
	l := layout{wide: c.Window > narrowWindow, packet: c.room() - utpwire.DataLen}
	for _, s := range p {
		switch {
		case s == StageNull:
		case s == StageFragmentation && !l.fragment && l.order == StageNull:
			l.fragment = true
			l.packet -= utpwire.FragmentLen
		case s == StageUnreliableSequenced && l.order == StageNull:
			l.order = s
			l.packet -= utpwire.SequencedLen
		case s == StageReliableSequenced && l.order == StageNull:
			l.order = s
			l.packet -= utpwire.ReliableLen(l.wide)
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

// pipelineState is what a connection remembers of one pipeline.
type pipelineState struct {
	sequence uint16 // of the next sequenced packet
	newest   uint16 // sequenced packet received; starts at 65535
	fragment uint16 // sequence of the next fragment
	assembly assembly
	reliable *reliable // nil if the pipeline has no such stage
}

func (e *Endpoint) newPipelineStates() []pipelineState {
	pipelines := make([]pipelineState, len(e.layouts))
	for i, l := range e.layouts {
		if l.order == StageReliableSequenced {
			pipelines[i].reliable = newReliable(e.cfg.Window)
		}
	}
	return pipelines
}

// resetPipelines clears the pipelines' states for a new connection.
func (e *Endpoint) resetPipelines(pipelines []pipelineState) {
	for i := range pipelines {
		ln := &pipelines[i]
		ln.sequence, ln.newest, ln.fragment = 0, 65535, 0
		ln.assembly.reset()
		if ln.reliable != nil {
			ln.reliable.reset(&e.pool)
		}
	}
}

// PipelineID names a pipeline on the wire: 1 for the first of the
// configuration, 2 for the second. 0 is no pipeline: the bare payload.
type PipelineID uint8

// Pipelines of NetcodeForEntities.
const (
	EntitiesUnreliable PipelineID = 1 // null
	EntitiesReliable   PipelineID = 2 // reliable sequenced
	EntitiesFragmented PipelineID = 3 // fragmentation
)

// NetcodeForEntities returns the configuration whose pipelines, window and
// capacities are those of Netcode for Entities.
func NetcodeForEntities() Config {
	return Config{
		Pipelines: []Pipeline{
			{StageNull},
			{StageReliableSequenced},
			{StageFragmentation},
		},
		Window:           32,
		FragmentCapacity: 16 << 10,
	}
}

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
func (a *assembly) add(h utpwire.FragmentHeader, piece []byte, capacity int) (msg []byte, o outcome, whole bool) {
	fits := a.open && h.Sequence == a.next && len(a.buf)+len(piece) <= capacity
	a.open = false
	switch {
	case h.First && h.Last:
		return piece, taken, true
	case h.First:
		a.buf = append(a.buf[:0], piece...)
	case !fits:
		return nil, dropFragment, false
	default:
		a.buf = append(a.buf, piece...)
	}
	if h.Last {
		return a.buf, taken, true
	}
	a.open = true
	a.next = (h.Sequence + 1) & utpwire.FragmentMask
	return nil, taken, false
}

// fragments returns how many packets a message needs.
func (l layout) fragments(size int) int {
	if !l.fragment || size <= l.packet {
		return 1
	}
	return (size + l.packet - 1) / l.packet
}
