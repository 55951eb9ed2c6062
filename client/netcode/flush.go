package netcode

import "github.com/ferryrelay/ferry/client/netcode/utp"

// Flush is the second half of a tick: it sends what the game has queued, with
// what the transport has to say.
func (d *Driver) Flush() {
	if d.ep != nil && !d.closed {
		d.flush()
	}
}

func (d *Driver) flush() {
	for _, s := range d.sessions {
		if s == nil {
			continue
		}
		d.flushRPCs(s)
		if s.out.due {
			d.flushStream(s)
		}
	}
	d.ep.Flush()
	for pkt, ok := d.ep.Next(); ok; pkt, ok = d.ep.Next() {
		if d.link.Send(pkt.To, pkt.Data) != nil {
			d.counts.Unsent++ // As if the network had lost it.
		}
	}
	d.flushPartings()
	d.link.Flush()
}

// flushRPCs puts as many RPCs as fit into each packet. What the transport's
// window does not take stays for the next tick.
func (d *Driver) flushRPCs(s *session) {
	for s.queue.len() > 0 {
		some := s.queue.next(d.ep.PacketPayload(utp.EntitiesReliable) - utp.RPCPacketLen)
		d.scratch = append(utp.AppendRPCPacket(d.scratch[:0], d.millis()), some...)
		if err := d.ep.Send(s.conn, utp.EntitiesReliable, d.scratch); err != nil {
			return
		}
		s.queue.drop(len(some))
	}
}

// flushStream sends the command or snapshot of this tick, in one packet if it
// fits.
func (d *Driver) flushStream(s *session) {
	s.out.due = false
	now := d.millis()
	if d.server {
		h := snapshotHeader{time: now, ret: s.trip.returned(now), sequence: s.sequence, tick: s.out.tick}
		if s.in.any {
			h.age = int32(s.out.tick - s.in.tick)
		}
		s.sequence++
		d.scratch = h.append(d.scratch[:0])
	} else {
		h := commandHeader{acks: s.acks, time: now, ret: s.trip.returned(now), tick: s.out.tick}
		d.scratch = h.append(d.scratch[:0])
	}
	d.scratch = append(d.scratch, s.out.body...)
	if d.ep.Send(s.conn, d.pipeline(len(d.scratch)), d.scratch) != nil {
		s.counts.Unsent++
		return
	}
	s.counts.Sent++
}

func (d *Driver) pipeline(size int) utp.PipelineID {
	if size <= d.ep.MaxPayload(utp.EntitiesUnreliable) {
		return utp.EntitiesUnreliable
	}
	return utp.EntitiesFragmented
}

// sendRPC queues an RPC of the game.
func (d *Driver) sendRPC(s *session, r RPC) error {
	i, known := d.table.find(r.hash)
	if !known {
		return ErrUnknownRPC
	}
	if s.state != StateConnected && (!s.handshaking() || !d.table[i].approval) {
		return ErrNotAllowedInState
	}
	size := utp.RPCLen + len(r.Payload)
	if d.cfg.RelaxedVersion {
		size += hashLen
	}
	if size > d.ep.PacketPayload(utp.EntitiesReliable)-utp.RPCPacketLen {
		return ErrTooLarge
	}
	if s.queue.len()+size > d.cfg.MaxRPCQueue {
		return ErrQueueFull
	}
	if d.cfg.RelaxedVersion {
		s.queue.addNamed(r.hash, r.Payload)
	} else {
		s.queue.add(utp.RPC{Index: uint16(i), Bits: uint16(8 * len(r.Payload)), Payload: r.Payload})
	}
	s.counts.RPCsSent++
	return nil
}

// sendStream keeps a command or snapshot for Flush.
func (d *Driver) sendStream(s *session, header int, tick uint32, b []byte) error {
	if s.state != StateConnected || !s.inGame {
		return ErrNotAllowedInState
	}
	if header+len(b) > max(d.ep.MaxPayload(utp.EntitiesUnreliable), d.ep.MaxPayload(utp.EntitiesFragmented)) {
		return ErrTooLarge
	}
	s.out.due, s.out.tick = true, tick
	s.out.body = append(s.out.body[:0], b...)
	return nil
}

// MaxRPC returns the largest payload of an RPC in bytes, 0 before there is a
// link.
func (d *Driver) MaxRPC() int {
	if d.ep == nil {
		return 0
	}
	n := d.ep.PacketPayload(utp.EntitiesReliable) - utp.RPCPacketLen - utp.RPCLen
	if d.cfg.RelaxedVersion {
		n -= hashLen
	}
	return n
}
