package netcode

import (
	"encoding/binary"

	"github.com/ferryrelay/ferry/client/netcode/utp"
)

// message takes one message of the transport.
func (d *Driver) message(s *session, p utp.PipelineID, b []byte) {
	switch {
	case p == utp.EntitiesReliable:
		d.rpcPacket(s, b)
	case d.server:
		d.takeCommand(s, b)
	default:
		d.takeSnapshot(s, b)
	}
}

// rpcPacket takes the RPCs of a packet in their order. One that is not right
// ends the connection, and with it all that was received in this tick.
func (d *Driver) rpcPacket(s *session, b []byte) {
	_, rest, err := utp.ParseRPCPacket(b)
	if err != nil && !s.heard {
		d.shut(s, ReasonProtocolError, "not an RPC packet: the transports differ, perhaps in their window")
		return
	}
	if err != nil {
		d.invalid(s, "not an RPC packet")
		return
	}
	for len(rest) > 0 && s.live() {
		var r utp.RPC
		if r, rest, err = utp.ParseRPC(rest); err != nil {
			d.invalid(s, "an RPC is cut off")
			return
		}
		switch {
		case r.Bits%8 != 0:
			d.invalid(s, "an RPC has trailing bits")
		case r.Index >= firstSystem && r.Index != indexNamed:
			d.system(s, r.Index, r.Payload)
		default:
			d.takeRPC(s, r)
		}
	}
}

// takeRPC takes one RPC of the game.
func (d *Driver) takeRPC(s *session, r utp.RPC) {
	i, known := int(r.Index), int(r.Index) < len(d.table)
	if r.Index == indexNamed && len(r.Payload) >= hashLen {
		i, known = d.table.find(binary.LittleEndian.Uint64(r.Payload))
		r.Payload = r.Payload[hashLen:]
	}
	if !known {
		d.invalid(s, "an RPC is unknown")
		return
	}
	t := &d.table[i]
	if s.state != StateConnected && !t.approval {
		d.invalid(s, "RPC "+t.name+" before the connection is connected")
		return
	}
	if !t.valid(r.Payload) {
		d.invalid(s, "RPC "+t.name+" has a wrong length")
		return
	}
	s.counts.RPCsReceived++
	s.rpcs = append(s.rpcs, RPC{hash: t.hash, Payload: r.Payload})
}

// invalid ends a connection whose peer sent what it must not.
func (d *Driver) invalid(s *session, text string) {
	d.log.Warn("invalid RPC", "networkID", s.id, "detail", text)
	d.shut(s, ReasonInvalidRPC, text)
}

// takeCommand keeps the newest command of a tick.
func (d *Driver) takeCommand(s *session, b []byte) {
	h, body, ok := parseCommand(b)
	if !ok || s.state != StateConnected || !s.inGame {
		s.counts.Ignored++
		return
	}
	s.trip.heard(d.millis(), h.time, h.ret)
	if d.take(s, h.tick, body) {
		s.acked = h.acks
	}
}

// takeSnapshot keeps the newest snapshot of a tick. One that the game will not
// see, since a newer one replaced it, is not acknowledged.
func (d *Driver) takeSnapshot(s *session, b []byte) {
	h, body, ok := parseSnapshot(b)
	if !ok || s.state != StateConnected || !s.inGame {
		s.counts.Ignored++
		return
	}
	s.trip.heard(d.millis(), h.time, h.ret)
	before, replaces, had := s.in.tick, s.in.fresh, s.in.any
	if !d.take(s, h.tick, body) {
		return
	}
	if had {
		s.counts.Lost += uint64(h.sequence - s.sequence - 1)
	}
	s.sequence, s.age = h.sequence, h.age
	s.acks.add(h.tick)
	if replaces {
		s.acks.remove(before)
	}
}

// take keeps a command or snapshot that is newer than the last.
func (d *Driver) take(s *session, tick uint32, body []byte) bool {
	s.counts.Received++
	newer, replaced := s.in.take(tick, body)
	switch {
	case !newer:
		s.counts.Late++
	case replaced:
		s.counts.Replaced++
	}
	return newer
}
