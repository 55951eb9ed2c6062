package utp

import "fmt"

// Stage is one step that a payload passes on a pipeline.
type Stage uint8

const (
	// StageNull does nothing.
	StageNull Stage = iota
	// StageFragmentation costs the whole message for one packet out of order.
	StageFragmentation
	// StageUnreliableSequenced drops what is older than the newest received.
	StageUnreliableSequenced
	// StageReliableSequenced delivers everything once and in order.
	StageReliableSequenced
)

// Pipeline is the order in which a payload passes stages when it is sent: at
// most one fragmentation, and then at most one sequenced stage. Both ends must
// list the same ones.
type Pipeline []Stage

type layout struct {
	fragment bool
	order    Stage // StageNull, StageUnreliableSequenced or StageReliableSequenced
	wide     bool  // the reliable mask has 8 bytes
	packet   int   // payload bytes in one packet, behind all headers
	limit    int   // payload bytes in one Send
}

func (c Config) layoutOf(p Pipeline) (layout, error) {
	l := layout{wide: c.Window > narrowWindow, packet: c.room() - dataLen}
	headers := []int{0, fragmentLen, sequencedLen, reliableLen(l.wide)} // by stage
	for _, s := range p {
		switch {
		case int(s) >= len(headers), s != StageNull && l.order != StageNull, s == StageFragmentation && l.fragment:
			return layout{}, fmt.Errorf("%w: stage %d does not fit into pipeline %d", ErrConfig, s, p)
		case s == StageFragmentation:
			l.fragment = true
		case s != StageNull:
			l.order = s
		}
		l.packet -= headers[s]
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

type pipelineState struct {
	sequence uint16 // of the next sequenced packet
	expected uint16 // sequence behind the newest sequenced packet that was received
	fragment uint16 // sequence of the next fragment
	assembly assembly
	reliable *reliable // nil if the pipeline has no such stage
}

func newPipelineStates(layouts []layout, window int) []pipelineState {
	pipelines := make([]pipelineState, len(layouts))
	for i, l := range layouts {
		if l.order == StageReliableSequenced {
			pipelines[i].reliable = newReliable(window)
		}
	}
	return pipelines
}

func resetPipelines(pipelines []pipelineState, p *pool) {
	for i := range pipelines {
		s := &pipelines[i]
		*s = pipelineState{reliable: s.reliable, assembly: assembly{buf: s.assembly.buf[:0]}}
		if s.reliable != nil {
			s.reliable.reset(p)
		}
	}
}

// PipelineID names a pipeline on the wire: 1 for the first of the
// configuration, 0 for none.
type PipelineID uint8

// Pipelines of NetcodeForEntities.
const (
	EntitiesUnreliable PipelineID = 1 // null
	EntitiesReliable   PipelineID = 2 // reliable sequenced
	EntitiesFragmented PipelineID = 3 // fragmentation
)

// NetcodeForEntities returns the configuration of Netcode for Entities.
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

type assembly struct {
	buf  []byte
	next uint16 // sequence of the piece that must come next
	open bool   // a first piece came, the last one not
}

// add returns the message, which is valid until the next add, when it is whole.
func (a *assembly) add(head uint16, piece []byte, capacity int) (msg []byte, o outcome, whole bool) {
	sequence, first, last := head&fragmentMask, head&fragmentFirst != 0, head&fragmentLast != 0
	fits := first || a.open && sequence == a.next && len(a.buf)+len(piece) <= capacity
	a.open, a.next = fits && !last, (sequence+1)&fragmentMask
	switch {
	case !fits:
		return nil, dropFragment, false
	case first && last:
		return piece, taken, true
	case first:
		a.buf = a.buf[:0]
	}
	a.buf = append(a.buf, piece...)
	if !last {
		return nil, taken, false
	}
	return a.buf, taken, true
}

func (l layout) fragments(size int) int { return max(1, (size+l.packet-1)/l.packet) }
