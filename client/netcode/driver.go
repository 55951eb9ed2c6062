package netcode

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/utp"
)

// Driver is a server with its clients, or a client with its server. It starts no
// goroutine and is not safe for concurrent use.
type Driver struct {
	cfg     Config
	server  bool
	log     *slog.Logger
	table   rpcTable
	version version

	link   link.Link     // nil before it is needed
	ep     *utp.Endpoint // there when link is
	err    error         // why the link ended
	closed bool

	started bool
	last    time.Time     // the caller's clock at the last Update
	behind  time.Duration // by how much the caller's clock went back, unless it returned
	elapsed time.Duration // the driver's own

	sessions        []*session // by slot of the transport
	ids             networkIDs
	pendingReleases []pendingRelease
	events          []Event
	requests        []*Request
	auto            *Request // of Config.AutoConnectPort, until its result was returned

	buf     []byte // of the datagram that is received
	scratch []byte // of the message that is sent
	ended   Stats  // of the connections whose place another one has
}

// NewServer returns a server that does not listen yet. Errors wrap ErrConfig; the link
// remains the caller's then.
func NewServer(cfg Config) (*Driver, error) { return newDriver(cfg, true) }

// NewClient returns a client without a connection. Errors are those of
// NewServer.
func NewClient(cfg Config) (*Driver, error) { return newDriver(cfg, false) }

func newDriver(cfg Config, server bool) (*Driver, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	d := &Driver{
		cfg: cfg, server: server, log: cfg.Logger, table: cfg.RPCs.table(),
		buf: make([]byte, link.MaxDatagram),
	}
	d.version = version{
		Protocol: wireVersion, Game: cfg.GameVersion, RPCs: d.table.fingerprint(), Components: cfg.ComponentsHash,
	}
	if cfg.Link != nil {
		if err := d.attach(cfg.Link); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// attach takes a link.
func (d *Driver) attach(l link.Link) error {
	ep, err := utp.New(d.cfg.transport(l.Overhead()))
	if err == nil && d.cfg.Conditions != (link.Conditions{}) {
		l, err = link.Simulate(l, d.cfg.Conditions)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	d.link, d.ep = l, ep
	d.ep.Advance(d.elapsed)
	return nil
}

// open makes the link, a UDP socket, if there is none.
func (d *Driver) open(local address.Addr) error {
	switch {
	case d.closed:
		return net.ErrClosed
	case d.err != nil:
		return d.err
	case d.link != nil:
		return nil
	}
	at, ok := local.UDP()
	if local.IsValid() && !ok {
		return link.ErrAddr
	}
	l, err := link.OpenUDP(at)
	if err != nil {
		return err
	}
	if err := d.attach(l); err != nil {
		return errors.Join(err, l.Close())
	}
	return nil
}

// Listen begins to accept clients. The zero address means that of the link, or without one
// any port. Another address must be the link's, if Config.Link is set.
//
// Errors: ErrNotAllowed, ErrAlready, link.ErrAddr, and those of link.OpenUDP and of Config.Rand.
// After a failure, Listen may be called again.
func (d *Driver) Listen(at address.Addr) error {
	if !d.server {
		return ErrNotAllowed
	}
	if d.listening() {
		return ErrAlready
	}
	if at.IsValid() && d.link != nil && d.link.Local() != at {
		return link.ErrAddr
	}
	if err := d.open(at); err != nil {
		return err
	}
	if err := d.ep.Listen(true); err != nil {
		return err
	}
	d.log.Info("listening", "at", d.link.Local())
	return nil
}

func (d *Driver) listening() bool { return d.ep != nil && d.ep.Listening() }

// Connect begins to connect to a server; StateConnecting is an event of the
// next Update.
//
// Errors: ErrNotAllowed, ErrAlready, link.ErrAddr, and those of link.OpenUDP, of the link, and of
// Config.Rand.
func (d *Driver) Connect(to address.Addr) (Conn, error) {
	if d.server {
		return Conn{}, ErrNotAllowed
	}
	if d.busy() {
		return Conn{}, ErrAlready
	}
	ap, udp := to.UDP()
	if !to.IsValid() || udp && (ap.Port() == 0 || !isOneMachine(ap.Addr())) {
		return Conn{}, link.ErrAddr
	}
	var local address.Addr
	if ap.Addr().Is6() {
		local = address.FromUDP(netip.AddrPortFrom(netip.IPv6Unspecified(), 0))
	}
	if err := d.open(local); err != nil {
		return Conn{}, err
	}
	if own, _ := d.link.Local().UDP(); own.Addr().BitLen() != ap.Addr().BitLen() {
		return Conn{}, link.ErrAddr // One of both is an allocation, or they are of different families.
	}
	if err := d.link.Dial(); err != nil {
		return Conn{}, err
	}
	id, err := d.ep.Connect(to)
	if err != nil {
		return Conn{}, err
	}
	s := d.newSession(id, StateConnecting)
	s.connectingDue = true
	return Conn{d, id}, nil
}

// isOneMachine reports whether a machine can have an address: any, all and several have it not.
func isOneMachine(ip netip.Addr) bool {
	if ip.IsUnspecified() || ip.IsMulticast() || ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return false
	}
	networks, _ := net.InterfaceAddrs() // Without them, datagrams to a network are lost.
	for _, n := range networks {
		prefix, err := netip.ParsePrefix(n.String())
		if err != nil || !prefix.Addr().Is4() || prefix.Bits() > 30 || !prefix.Contains(ip) {
			continue
		}
		last := binary.BigEndian.Uint32(prefix.Addr().AsSlice()) | (1<<(32-prefix.Bits()) - 1)
		if binary.BigEndian.Uint32(ip.AsSlice()) == last {
			return false
		}
	}
	return true
}

// busy reports whether a client has a connection.
func (d *Driver) busy() bool {
	for _, s := range d.sessions {
		if s != nil && s.live() && !d.server {
			return true
		}
	}
	return false
}

// Link returns the link, nil before it was opened, in a link.Simulation if Config.Conditions is
// set. It is for its address, its counters and its session.
func (d *Driver) Link() link.Link { return d.link }

// Conns returns the connections in the order of their slots, without those
// that have ended.
func (d *Driver) Conns() iter.Seq[Conn] {
	return func(yield func(Conn) bool) {
		for _, s := range d.sessions {
			if s != nil && s.live() && !yield(Conn{d, s.conn}) {
				return
			}
		}
	}
}

// Broadcast sends an RPC on every connection that may have it, and returns how
// many those were. Those in handshake and with a full queue are left out.
func (d *Driver) Broadcast(r RPC) (sent int) {
	for _, s := range d.sessions {
		if s != nil && s.live() && d.sendRPC(s, r) == nil {
			sent++
		}
	}
	return sent
}

func (d *Driver) newSession(id utp.ConnID, st State) *session {
	for len(d.sessions) <= id.Index() {
		d.sessions = append(d.sessions, nil)
	}
	s := d.sessions[id.Index()]
	if s == nil {
		s = new(session)
		d.sessions[id.Index()] = s
	}
	d.ended.add(&s.counts)
	s.reset(id, st)
	s.since = d.elapsed
	return s
}

// session returns what is known of a connection, or nil. It may have ended.
func (d *Driver) session(id utp.ConnID) *session {
	if d == nil || id.Index() >= len(d.sessions) {
		return nil
	}
	if s := d.sessions[id.Index()]; s != nil && s.conn == id {
		return s
	}
	return nil
}

// millis is the driver's time in a message.
func (d *Driver) millis() uint32 { return millisOf(d.elapsed) }

func millisOf(t time.Duration) uint32 { return uint32(t/time.Millisecond) + 1 }

// Run makes ticks at a rate per second, from 1 to 1000, until ctx ends: an
// Update, the game's turn, and a Flush. The turn gets the time of the Update and the
// number of the tick, from 1 on. The driver belongs to Run meanwhile, so that the game
// may use it in its turn alone; turn may be nil. A tick that comes late is made once.
//
// It returns ctx.Err(), or the error of Update, after the game's turn of that
// tick. The caller closes the driver.
func (d *Driver) Run(ctx context.Context, tickRate int, turn func(now time.Time, tick uint32)) error {
	if tickRate < 1 || tickRate > 1000 {
		return fmt.Errorf("%w: tick rate %d is not within 1 and 1000", ErrConfig, tickRate)
	}
	t := time.NewTicker(time.Second / time.Duration(tickRate))
	defer t.Stop()
	for tick := uint32(1); ; tick++ {
		now := time.Now()
		err := d.Update(now)
		if turn != nil {
			turn(now, tick)
		}
		if err != nil {
			return err
		}
		d.Flush()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}

// State is where a connection stands. The values are those of Netcode for
// Entities. No connection enters a state twice.
type State uint8

// The states, in the order in which a connection passes them; any of them may
// be followed by StateDisconnected.
const (
	// StateUnknown: the zero Conn.
	StateUnknown State = iota
	// StateDisconnected: over, or never was.
	StateDisconnected
	// StateConnecting: a client that waits for the server's transport.
	StateConnecting
	// StateHandshake: the two sides exchange their protocol versions.
	StateHandshake
	// StateApproval: the server's game decides on the client.
	StateApproval
	// StateConnected: the connection has a NetworkID, and everything may pass.
	StateConnected
	// StateStalled and StateResumed are of events alone: a connection that stays in StateConnected
	// receives nothing for four times Config.HeartbeatTimeout, which should be the same on both
	// sides, and then it does again.
	StateStalled
	StateResumed
)

var stateNames = [...]string{
	"unknown", "disconnected", "connecting", "handshake", "approval", "connected", "stalled", "resumed",
}

// String returns the name of the state, or state(n).
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// maxStep bounds by how much one Update moves the clock; more times out all.
const maxStep = 24 * time.Hour

// Update is the first half of a tick: it takes what arrived, ends what waited
// too long, and publishes what happened. What it handed out before is no longer
// valid. A time before that of the last Update counts as the same, and a later return of the
// clock as none.
//
// It returns why the link has ended, after which nothing arrives any more, or,
// once, why Config.AutoConnectPort could not be done; net.ErrClosed after Close.
func (d *Driver) Update(now time.Time) error {
	if d.closed {
		return net.ErrClosed
	}
	first := !d.started
	d.advance(now)
	d.forget()
	if first {
		d.requestAuto()
	}
	d.serveRequests()
	if d.ep != nil {
		d.link.Advance(now)
		d.ep.Advance(d.elapsed)
		d.receive()
		d.ep.Update()
		d.serveSessions()
		d.takeEvents()
		d.order()
	}
	if d.err != nil {
		return d.err
	}
	return d.takeAutoError()
}

func (d *Driver) advance(now time.Time) {
	step := now.Sub(d.last)
	switch {
	case !d.started:
		d.started, step = true, 0
	case step < 0:
		d.behind -= step
		step = 0
	case step >= d.behind: // The clock has returned: what it went back does not count.
		step -= d.behind
		d.behind = 0
	}
	d.elapsed += min(step, maxStep)
	d.last = now
}

// forget drops what was handed out for one tick.
func (d *Driver) forget() {
	d.ids.age()
	clear(d.events)
	d.events = d.events[:0]
	for _, s := range d.sessions {
		if s == nil {
			continue
		}
		clear(s.rpcs)
		s.rpcs = s.rpcs[:0]
		clear(s.messages)
		s.messages = s.messages[:0]
		s.in.fresh, s.in.body = false, nil
		s.inputs.next()
		if !s.inGame {
			s.leaveGame()
		}
	}
}

// receive takes what the link has.
func (d *Driver) receive() {
	for range maxReceive {
		ev := d.link.Receive(d.buf)
		switch ev.Kind {
		case link.Nothing:
			return
		case link.Datagram:
			d.ep.Receive(ev.Addr, d.buf[:ev.N])
		case link.Joined:
			d.peerJoined(ev.Addr)
		case link.Left:
			d.peerLeft(ev.Addr, ev.Err)
		case link.Refused:
			d.log.Warn("the link refused", "error", ev.Err)
			d.dropAllPeers(ev.Err)
		case link.Ended:
			d.err = ev.Err
			d.log.Error("the link ended", "error", ev.Err)
			d.dropAllPeers(ev.Err)
			return
		}
	}
}

// serveSessions does what the game and the time want of each connection.
func (d *Driver) serveSessions() {
	for _, s := range d.sessions {
		switch {
		case s == nil:
		case s.lingering:
			d.linger(s)
		case s.live():
			d.serve(s)
		}
	}
}

func (d *Driver) serve(s *session) {
	if s.connectingDue {
		s.connectingDue = false
		d.enter(s, StateConnecting)
	}
	switch {
	case s.closing:
		d.closeLocal(s, s.closeReason, s.closeText)
	case d.ep.State(s.conn) == utp.StateNone: // Its last event is in the queue.
	case s.state == StateApproval && s.approved && d.server:
		d.welcome(s)
	default:
		d.expire(s)
	}
}

// expire ends what takes too long, and notes that a connection has stalled or goes on.
func (d *Driver) expire(s *session) {
	heard, _ := d.ep.Heard(s.conn)
	silence := d.elapsed - heard
	switch heartbeat, limit := d.cfg.HeartbeatTimeout, d.cfg.DisconnectTimeout; {
	case limit != NoTimeout && silence > limit && d.ep.State(s.conn) == utp.StateEstablished:
		d.closeSilent(s)
	case s.handshaking() && d.elapsed-s.since >= d.cfg.HandshakeApprovalTimeout:
		reason := ReasonApprovalTimeout
		if s.state == StateHandshake {
			reason = ReasonHandshakeTimeout
		}
		d.closeLocal(s, reason, "")
	case s.state == StateConnected && heartbeat != NoTimeout && s.stalled != (silence > stallHeartbeats*heartbeat):
		s.stalled = !s.stalled
		st := StateResumed
		if s.stalled {
			st = StateStalled
		}
		d.publish(Event{Conn: Conn{d, s.conn}, NetworkID: s.id, State: st})
	}
}

// stallHeartbeats is how many heartbeats in a row are missing in a connection that has stalled.
const stallHeartbeats = 4

// takeEvents goes through what the transport has to say, in its order.
func (d *Driver) takeEvents() {
	for ev, ok := d.ep.NextEvent(); ok; ev, ok = d.ep.NextEvent() {
		if ev.Kind == utp.EventIncoming {
			d.incoming(ev.Conn)
			continue
		}
		s := d.session(ev.Conn)
		switch {
		case s == nil:
		case s.lingering:
			if ev.Kind == utp.EventDisconnected { // The peer has read the notice.
				d.release(s.at)
				d.forgetTransport(s)
			}
		case !s.live():
		case ev.Kind == utp.EventConnected:
			d.begin(s)
		case ev.Kind == utp.EventData:
			d.message(s, ev.Pipeline, ev.Data)
		case ev.Kind == utp.EventDisconnected:
			d.transportEnded(s, ev)
		}
	}
}

// incoming takes a client, which has proven its address, unless it has left in the same tick.
func (d *Driver) incoming(id utp.ConnID) {
	if d.ep.State(id) != utp.StateNone {
		d.begin(d.newSession(id, StateUnknown))
	}
}
