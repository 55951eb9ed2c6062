package netcode

import (
	"iter"
	"net"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/internal/utp"
)

// Conn names one connection of a driver. It is comparable and is never used
// again for another one; its zero is none. Its methods belong to the goroutine
// of the driver and may be called at any time: those of a connection that has
// ended return ErrGone or nothing.
type Conn struct {
	d  *Driver
	id utp.ConnID
}

// live returns the session of a connection that has not ended, or nil.
func (c Conn) live() *session {
	if s := c.d.session(c.id); s != nil && s.live() {
		return s
	}
	return nil
}

var noSession = new(session)

// receivingSession returns the session of a connection, also of one that ended in the last Update, or
// an empty one.
func (c Conn) receivingSession() *session {
	if s := c.d.session(c.id); s != nil {
		return s
	}
	return noSession
}

// each is slices.Values, whose result the compiler would allocate.
func each[T any](list []T, yield func(T) bool) {
	for _, v := range list {
		if !yield(v) {
			return
		}
	}
}

// State returns where the connection stands: StateUnknown for the zero Conn.
func (c Conn) State() State {
	if c.d == nil {
		return StateUnknown
	}
	if s := c.live(); s != nil {
		return s.state
	}
	return StateDisconnected
}

// NetworkID returns the id, 0 unless the connection is connected.
func (c Conn) NetworkID() NetworkID {
	if s := c.live(); s != nil {
		return s.id
	}
	return 0
}

// Remote returns where the peer is now.
func (c Conn) Remote() (address.Addr, bool) {
	if c.live() == nil {
		return address.Addr{}, false
	}
	return c.d.ep.Remote(c.id)
}

// Approve makes a client connected with the next Update, or, during the handshake, when the
// handshake is complete. A second call does nothing.
//
// Errors: ErrGone, and ErrNotAllowed on a client, if Config.RequireApproval is not set or
// if Disconnect was called before.
func (c Conn) Approve() error {
	s := c.live()
	switch {
	case s == nil:
		return ErrGone
	case !c.d.server || !c.d.cfg.RequireApproval || s.closing:
		return ErrNotAllowed
	}
	s.approved = true
	return nil
}

// Disconnect ends the connection with the next Update, whose event has this reason. The
// peer's event has ReasonClosedByRemote, and the reason and up to 127 bytes of the text as
// PeerReason and PeerText. Of several calls the first counts. The notice delays the end of
// the transport by up to 250 ms in the background.
func (c Conn) Disconnect(r Reason, text string) {
	if s := c.live(); s != nil && !s.closing {
		s.closing, s.closeReason, s.closeText = true, r, cut(text)
	}
}

// SetInGame turns commands and snapshots on or off on this side; they pass if both sides have
// turned them on. Turning them off resets the acknowledgements.
func (c Conn) SetInGame(on bool) {
	s := c.live()
	if s == nil {
		return
	}
	s.inGame = on
	if !on {
		s.leaveGame()
	}
}

// InGame returns what SetInGame has set.
func (c Conn) InGame() bool {
	s := c.live()
	return s != nil && s.inGame
}

// SendRPC queues an RPC, which arrives once and in order. A payload above one packet, over
// UDP by default 1369 bytes, travels in several, and the RPCs behind it wait for the last of
// them; it may have Config.MaxRPCLen bytes, and must fit into Config.MaxRPCQueue.
//
// Errors: ErrGone, ErrUnknownRPC, ErrNotAllowed, ErrTooLarge, ErrQueueFull.
func (c Conn) SendRPC(r RPC) error {
	s := c.live()
	if s == nil {
		return ErrGone
	}
	return c.d.sendRPC(s, r)
}

// RPCs returns those that were received in the last Update, also of a connection that ended
// in it. Conns does not return such a connection; its event has it.
func (c Conn) RPCs() iter.Seq[RPC] {
	return func(yield func(RPC) bool) { each(c.receivingSession().rpcs, yield) }
}

// SendSnapshot sends a snapshot to a client with the next Flush; of several in
// one tick only the last leaves. It may be lost, see Acks.
//
// Errors: ErrGone, ErrNotAllowed, ErrTooLarge.
func (c Conn) SendSnapshot(tick uint32, b []byte) error {
	s := c.live()
	if s == nil {
		return ErrGone
	}
	if !c.d.server {
		return ErrNotAllowed
	}
	if err := c.d.maySend(s, snapshotLen, len(b)); err != nil {
		return err
	}
	s.out.due, s.out.tick = true, tick
	s.out.body = append(s.out.body[:0], b...)
	return nil
}

// Snapshot returns the server's snapshot with the newest tick, if one came in
// the last Update. It is valid until the next.
func (c Conn) Snapshot() (tick uint32, b []byte, ok bool) {
	s := c.live()
	if s == nil || !s.in.fresh {
		return 0, nil, false
	}
	return s.in.tick, s.in.body, true
}

// Acks returns which snapshots the client has processed. A server learns it from the
// client's commands; a client that sends none acknowledges snapshots every 50 ms.
func (c Conn) Acks() Acks {
	switch s := c.live(); {
	case s == nil:
		return Acks{}
	case c.d.server:
		return s.acked
	default:
		return s.acks
	}
}

// SetUserData keeps a value of the game until the connection ends.
func (c Conn) SetUserData(v any) {
	if s := c.live(); s != nil {
		s.userData = v
	}
}

// UserData returns that value.
func (c Conn) UserData() any {
	if s := c.live(); s != nil {
		return s.userData
	}
	return nil
}

// session is what a driver knows of one connection. It belongs to the slot of
// the transport and is used again, with its buffers, by later connections.
type session struct {
	conn            utp.ConnID
	state           State
	id              NetworkID
	since           time.Duration // when the handshake began, of a client also the approval
	connectingDue   bool          // StateConnecting was not published yet
	dials           int           // times that the attempt had to find its peer again
	versionReceived bool          // the peer's version came, and fits
	approved        bool
	inGame          bool
	stalled         bool // StateStalled was published
	userData        any

	closing     bool // the game wants it to end
	closeReason Reason
	closeText   string
	lingering   bool // ended, but the notice may still be on its way
	until       time.Duration
	at          address.Addr // where the peer was then

	queue   rpcQueue
	rpcs    []RPC
	partial partialRPC

	messages [][]byte // received in this tick

	in     inbound  // of a client
	out    outbound // of a server
	inputs inputs   // of a server

	commands     sentCommands  // of a client
	commandsSent time.Duration // when a datagram of commands was sent
	ackDue       bool          // a snapshot was received since then

	acks     Acks // of the client
	acked    Acks // as the server knows them
	age      int32
	sequence uint8 // of the last snapshot
	trip     roundTrip
	counts   Stats // what add adds
}

func (s *session) reset(id utp.ConnID, st State) {
	queue, rpcs, body, inputs, commands := s.queue, s.rpcs, s.out.body, s.inputs, s.commands
	messages := s.messages
	queue.reset()
	clear(rpcs)
	clear(messages)
	inputs.reset()
	commands.reset()
	*s = session{conn: id, state: st, queue: queue, rpcs: rpcs[:0], inputs: inputs, commands: commands, messages: messages[:0]}
	s.out.body = body[:0]
}

// live reports whether the game still has this connection.
func (s *session) live() bool { return s.state > StateDisconnected }

// leaveGame forgets what is acknowledged, but not how long a round trip takes.
func (s *session) leaveGame() {
	if s.in.any {
		s.in = inbound{after: s.trip.remote}
	}
	s.out.due = false
	s.inputs.leave()
	s.commands.reset()
	s.ackDue = false
	s.acks, s.acked, s.age = Acks{}, Acks{}, 0
}

// handshaking reports whether the limit of handshake and approval counts.
func (s *session) handshaking() bool { return s.state == StateHandshake || s.state == StateApproval }

// lingerTime is how long an ended connection waits for its notice to arrive.
const lingerTime = 250 * time.Millisecond

// releaseFlushes is in how many flushes the transport repeats its disconnect.
// Only then may the link be disconnected at a relay.
const releaseFlushes = 3

// pendingRelease is a peer whose link is still to be disconnected.
type pendingRelease struct {
	at   address.Addr
	left int
}

// endSession publishes the end of a connection. The RPCs before it stay until the next Update.
func (d *Driver) endSession(s *session, ev Event) {
	d.enter(s, StateDisconnected)
	ev.Conn, ev.NetworkID, ev.State, ev.UserData = Conn{d, s.conn}, s.id, StateDisconnected, s.userData
	d.publish(ev)
	if d.server && s.id != 0 {
		d.ids.free(s.id)
	}
	s.inGame, s.userData, s.partial = false, nil, partialRPC{}
	s.leaveGame()
}

// closeLocal ends a connection from this side and sends the peer a close notice.
func (d *Driver) closeLocal(s *session, r Reason, text string) {
	d.closeBecause(s, r, text, nil)
}

// closeBecause is closeLocal with a cause for the event of this side.
func (d *Driver) closeBecause(s *session, r Reason, text string, cause error) {
	d.endSession(s, Event{Reason: r, PeerReason: r, Cause: cause})
	s.at, _ = d.ep.Remote(s.conn)
	if d.ep.State(s.conn) != utp.StateEstablished {
		d.closeTransport(s)
		return
	}
	s.queue.add(indexClose, appendClose(nil, r, text), nil)
	s.lingering, s.until = true, d.elapsed+lingerTime
}

// closeSilent ends a connection whose peer is silent. As that acknowledges nothing, the reliable
// notice may have no room; the peer gets another one.
func (d *Driver) closeSilent(s *session) {
	d.closeLocal(s, ReasonTimeout, "")
	d.scratch = appendClose(append(d.scratch[:0], kindClose), ReasonTimeout, "")
	_ = d.ep.Send(s.conn, utp.EntitiesUnreliable, d.scratch) // Without room, the peer gets no reason.
}

// linger ends the transport's connection when the notice has arrived, or will
// not any more.
func (d *Driver) linger(s *session) {
	st, ok := d.ep.ConnStats(s.conn)
	if ok && d.elapsed < s.until && st.InFlight+s.queue.len() > 0 {
		return
	}
	d.closeTransport(s)
}

// closeTransport ends the transport's connection.
func (d *Driver) closeTransport(s *session) {
	if d.ep.State(s.conn) != utp.StateNone {
		d.ep.Disconnect(s.conn)
		d.release(s.at)
	}
	d.forgetTransport(s)
}

// forgetTransport forgets a connection that the transport does not have any more.
func (d *Driver) forgetTransport(s *session) {
	s.lingering = false
	s.queue.reset()
}

// release makes the link forget a peer, a little later.
func (d *Driver) release(at address.Addr) {
	for i := range d.pendingReleases {
		if d.pendingReleases[i].at == at {
			d.pendingReleases[i].left = releaseFlushes
			return
		}
	}
	d.pendingReleases = append(d.pendingReleases, pendingRelease{at, releaseFlushes})
}

// flushReleases belongs behind the datagrams of a flush.
func (d *Driver) flushReleases() {
	kept := d.pendingReleases[:0]
	for _, p := range d.pendingReleases {
		p.left--
		switch {
		case p.left > 0:
			kept = append(kept, p)
		case !d.hasPeer(p.at):
			d.link.Disconnect(p.at)
		}
	}
	d.pendingReleases = kept
}

// hasPeer reports whether there is a connection with an address.
func (d *Driver) hasPeer(at address.Addr) bool {
	for _, s := range d.sessions {
		if s == nil {
			continue
		}
		if remote, ok := d.ep.Remote(s.conn); ok && remote == at {
			return true
		}
	}
	return false
}

// transportEnded ends a connection that the transport does not have any more.
func (d *Driver) transportEnded(s *session, ev utp.Event) {
	end := Event{Reason: Reason(ev.Reason), PeerReason: Reason(ev.Reason), Cause: ev.Cause}
	if ev.Refused {
		// To answer more than that would be an amplifier for requests with forged sources.
		end.PeerReason = ReasonServerFull
	}
	d.endSession(s, end)
	d.forgetTransport(s)
}

// closeByPeer processes the close notice of the peer.
func (d *Driver) closeByPeer(s *session, body []byte) {
	reason, text, ok := parseClose(body)
	if !ok {
		d.closeInvalid(s, "a close notice has a wrong length")
		return
	}
	d.endSession(s, Event{Reason: ReasonClosedByRemote, PeerReason: reason, PeerText: text})
	d.ep.Disconnect(s.conn)
	d.forgetTransport(s)
}

// Close ends every connection, with what Disconnect was given if that was called. It sends
// what is queued and one notice, without waiting for an answer, and closes the link.
// It may be called again. Errors are those of the link.
func (d *Driver) Close() error {
	if d.closed {
		return nil
	}
	d.closed = true
	for _, r := range d.requests {
		r.err = net.ErrClosed
	}
	d.requests = nil
	d.forget()
	if d.link == nil {
		return nil
	}
	for _, s := range d.sessions {
		switch {
		case s == nil || !s.live():
		case s.closing:
			d.closeLocal(s, s.closeReason, s.closeText)
		default:
			d.closeLocal(s, ReasonConnectionClose, "")
		}
	}
	d.flush()
	for _, s := range d.sessions {
		if s != nil && s.lingering {
			d.closeTransport(s)
		}
	}
	d.ep.Listen(false)
	for range releaseFlushes {
		d.flush()
	}
	return d.link.Close()
}

// maxDials is how often one attempt to connect asks the link for its peer again.
const maxDials = 3

// peerLeft processes the link's report that a peer is gone.
//
// A host that ends a connection closes the link some flushes later. A client that
// connects again at once over the old link may therefore see the link end: that end
// concerns the previous connection, and the attempt continues over a new link.
func (d *Driver) peerLeft(at address.Addr, cause error) {
	s := d.attempt(at)
	if s == nil || s.dials == maxDials || d.link.Dial() != nil {
		d.ep.DropPeer(at, cause)
		return
	}
	s.dials++
	for _, old := range d.sessions {
		if old != nil && old.lingering && old.at == at {
			d.closeTransport(old) // Its notice has no way any more.
		}
	}
}

// peerJoined makes an attempt go on at once when its link is there, instead of when
// the next request is due: the last one may have had no link to go over.
func (d *Driver) peerJoined(at address.Addr) {
	if s := d.attempt(at); s != nil {
		d.ep.RetryConnect(s.conn)
	}
}

// attempt returns the connection that waits for the server at an address, or nil.
func (d *Driver) attempt(at address.Addr) *session {
	for _, s := range d.sessions {
		if s == nil || !s.live() || d.ep.State(s.conn) != utp.StateConnecting {
			continue
		}
		if to, _ := d.ep.Remote(s.conn); to == at {
			return s
		}
	}
	return nil
}

// dropAllPeers ends every connection, since the link lost all peers.
func (d *Driver) dropAllPeers(cause error) {
	for _, s := range d.sessions {
		if s == nil {
			continue
		}
		if at, ok := d.ep.Remote(s.conn); ok {
			d.ep.DropPeer(at, cause)
		}
	}
}
