package netcode

import (
	"slices"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/internal/utp"
)

// session belongs to a slot of the transport; later connections use it again.
type session struct {
	d        *Driver
	conn     utp.ConnID
	state    State
	id       NetworkID
	inGame   bool
	stalled  bool // StateStalled was published
	userData any

	handshake handshake
	closing   closing
	rpcs      rpcStream
	messages  [][]byte // received in this tick
	snapshots snapshotStream
	commands  commandStream
	trip      roundTrip
	counts    Stats // what add adds
}

func (s *session) reset(d *Driver, id utp.ConnID, st State) {
	before := *s
	clear(before.messages)
	*s = session{d: d, conn: id, state: st, messages: before.messages[:0]}
	s.handshake.since = d.clock.elapsed
	s.rpcs = rpcStream{s: s, queue: before.rpcs.queue, received: before.rpcs.received}
	s.rpcs.queue.reset()
	clear(s.rpcs.received)
	s.rpcs.received = s.rpcs.received[:0]
	s.snapshots = snapshotStream{s: s, out: outbound{body: before.snapshots.out.body[:0]}}
	s.commands = commandStream{s: s, inputs: before.commands.inputs, sent: before.commands.sent}
	s.commands.inputs.reset()
	s.commands.sent.reset()
}

func (s *session) live() bool { return s.state > StateDisconnected }

func (s *session) handshaking() bool { return s.state == StateHandshake || s.state == StateApproval }

func (s *session) forget() {
	s.forgetReceived()
	s.snapshots.in.fresh, s.snapshots.in.body = false, nil
	s.commands.inputs.next()
	if !s.inGame {
		s.leaveGame()
	}
}

func (s *session) forgetReceived() {
	clear(s.rpcs.received)
	s.rpcs.received = s.rpcs.received[:0]
	clear(s.messages)
	s.messages = s.messages[:0]
}

// leaveGame forgets what is acknowledged, but not how long a round trip takes.
func (s *session) leaveGame() {
	s.snapshots.leave(s.trip.remote)
	s.commands.inputs.leave()
	s.commands.sent.reset()
}

func (s *session) serve() {
	switch {
	case s.closing.lingering:
		s.linger()
		return
	case !s.live():
		return
	}
	if s.handshake.connectingDue {
		s.handshake.connectingDue = false
		s.enter(StateConnecting)
	}
	switch {
	case s.closing.requested:
		s.close(s.closing.reason, s.closing.text, nil)
	case s.d.ep.State(s.conn) == utp.StateNone: // Its last event is in the queue.
	case s.state == StateApproval && s.handshake.approved && s.d.server:
		s.welcome()
	default:
		s.expire()
	}
}

func (s *session) expire() {
	heard, _ := s.d.ep.Heard(s.conn)
	silence := s.d.clock.elapsed - heard
	switch heartbeat, limit := s.d.cfg.Timeouts.Heartbeat, s.d.cfg.Timeouts.Disconnect; {
	case limit != NoTimeout && silence > limit && s.d.ep.State(s.conn) == utp.StateEstablished:
		s.closeSilent()
	case s.handshaking() && s.d.clock.elapsed-s.handshake.since >= s.d.cfg.Timeouts.HandshakeApproval:
		reason := ReasonApprovalTimeout
		if s.state == StateHandshake {
			reason = ReasonHandshakeTimeout
		}
		s.close(reason, "", nil)
	case s.state == StateConnected && heartbeat != NoTimeout && s.stalled != (silence > stallHeartbeats*heartbeat):
		s.stalled = !s.stalled
		st := StateResumed
		if s.stalled {
			st = StateStalled
		}
		s.d.publish(Event{Conn: Conn{s.d, s.conn}, NetworkID: s.id, State: st})
	}
}

const stallHeartbeats = 4

// The first byte of a message is its kind, as in Netcode for Entities. RPC
// packets are those of package utp; the others are this package's own.
const (
	kindCommand  = 0
	kindSnapshot = 1
	kindMessage  = 3 // the rest is the game's
	kindClose    = 4 // the rest is a close notice, beside the RPC
)

func (s *session) message(p utp.PipelineID, b []byte) {
	switch {
	case p == utp.EntitiesReliable:
		s.rpcs.take(b)
	case len(b) > 0 && b[0] == kindMessage:
		s.takeMessage(b[1:])
	case len(b) > 0 && b[0] == kindClose:
		s.closeByPeer(b[1:])
	case s.d.server:
		s.commands.take(b)
	default:
		s.snapshots.take(b)
	}
}

func pipelineFor(ep *utp.Endpoint, size int) utp.PipelineID {
	if size <= ep.MaxPayload(utp.EntitiesUnreliable) {
		return utp.EntitiesUnreliable
	}
	return utp.EntitiesFragmented
}

// roundTrip measures round trips by times that the peer returns. Times are in
// ms of the driver's clock and begin at 1, so that 0 is none.
type roundTrip struct {
	remote uint32 // newest time of the peer
	at     uint32 // when it came

	measured  bool
	rtt       float64 // smoothed, in ms
	variation float64
}

func (r *roundTrip) echoTime(now uint32) uint32 {
	if r.remote == 0 {
		return 0
	}
	return r.remote + (now - r.at)
}

// maxRTT is the largest round trip in ms that is taken for one; a peer can
// return anything.
const maxRTT = 60_000

// minStall is the shortest round trip in ms that may have measured a stall.
const minStall = 1000

func (s *session) measure(time, ret uint32) {
	_, resumed := s.d.ep.Heard(s.conn)
	s.trip.update(s.d.clock.millis(), time, ret, millisOf(resumed))
}

func (r *roundTrip) update(now, time, ret, resumed uint32) {
	if time != 0 && (r.remote == 0 || int32(time-r.remote) > 0) {
		r.remote, r.at = time, now
	}
	if ret == 0 || now-ret > maxRTT {
		return
	}
	if now-ret > minStall && int32(ret-resumed) < 0 {
		return // It waited for a network that had stopped.
	}
	sample := float64(now - ret)
	if !r.measured {
		r.measured, r.rtt, r.variation = true, sample, sample/2
		return
	}
	off := sample - r.rtt
	r.rtt += off / 8
	r.variation += (max(off, -off) - r.variation) / 4
}

// sessionTable has the sessions of a driver by slot of the transport, and the counters of those
// whose slot another one has.
type sessionTable struct {
	list  []*session
	ended Stats
}

func (t *sessionTable) get(id utp.ConnID) *session {
	if id.Index() < len(t.list) && t.list[id.Index()].conn == id {
		return t.list[id.Index()]
	}
	return nil
}

func (t *sessionTable) begin(d *Driver, id utp.ConnID, st State) *session {
	for len(t.list) <= id.Index() {
		t.list = append(t.list, new(session))
		t.list[len(t.list)-1].reset(d, utp.ConnID{}, StateUnknown)
	}
	s := t.list[id.Index()]
	t.ended.add(&s.counts)
	s.reset(d, id, st)
	return s
}

func (t *sessionTable) anyLive() bool { return slices.ContainsFunc(t.list, (*session).live) }

func (t *sessionTable) hasPeer(at address.Addr) bool {
	return slices.ContainsFunc(t.list, func(s *session) bool {
		remote, ok := s.d.ep.Remote(s.conn)
		return ok && remote == at
	})
}

func (t *sessionTable) attempt(at address.Addr) *session {
	for _, s := range t.list {
		to, _ := s.d.ep.Remote(s.conn)
		if to == at && s.live() && s.d.ep.State(s.conn) == utp.StateConnecting {
			return s
		}
	}
	return nil
}

func (t *sessionTable) dropPeers(cause error) {
	for _, s := range t.list {
		if at, ok := s.d.ep.Remote(s.conn); ok {
			s.d.ep.DropPeer(at, cause)
		}
	}
}
