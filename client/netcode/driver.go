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

	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/internal/simulation"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/utp"
)

// Driver is a server or a client. It belongs to one goroutine.
type Driver struct {
	cfg     Config
	server  bool
	log     *slog.Logger
	table   rpcTable
	version version
	ticket  client.Ticket // of a link over a relay that this package has opened

	link   link.Link     // nil before it is needed
	ep     *utp.Endpoint // there when link is
	err    error         // why the link ended
	closed bool

	clock    clock
	sessions sessionTable
	ids      networkIDs
	releases releases
	events   []Event

	buf     []byte // of the datagram that is received
	scratch []byte // of the message that is sent
}

// NewServer returns a server that does not listen yet. Errors wrap ErrConfig; the link
// remains the caller's then.
func NewServer(cfg Config) (*Driver, error) { return newDriver(cfg, true) }

// NewClient returns a client without a connection. Errors wrap ErrConfig.
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

func (d *Driver) attach(l link.Link) error {
	ep, err := utp.New(d.cfg.transport(l.Overhead()))
	if err == nil && d.cfg.Conditions != (link.Conditions{}) {
		l, err = simulation.Simulate(l, d.cfg.Conditions)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	d.link, d.ep = l, ep
	d.ep.Advance(d.clock.elapsed)
	return nil
}

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

// Connect begins to connect to a server; StateConnecting is an event of the next Update.
//
// Errors: ErrNotAllowed, ErrAlready, link.ErrAddr, and those of the link and of Config.Rand.
func (d *Driver) Connect(to address.Addr) (Conn, error) {
	if d.server {
		return Conn{}, ErrNotAllowed
	}
	if d.sessions.anyLive() {
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
	d.sessions.begin(d, id, StateConnecting).handshake.connectingDue = true
	return Conn{d, id}, nil
}

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

// Link returns the link, nil before it was opened, with a simulated network if Config.Conditions is
// set. It is for its address, its counters and its session.
func (d *Driver) Link() link.Link { return d.link }

// Conns returns the connections that have not ended, in the order of slots.
func (d *Driver) Conns() iter.Seq[Conn] {
	return func(yield func(Conn) bool) {
		for _, s := range d.sessions.list {
			if s.live() && !yield(Conn{d, s.conn}) {
				return
			}
		}
	}
}

// Broadcast sends an RPC on every connection that may have it, and returns how
// many those were. Those in handshake and with a full queue are left out.
func (d *Driver) Broadcast(r RPC) (sent int) {
	for _, s := range d.sessions.list {
		if s.live() && s.rpcs.send(r) == nil {
			sent++
		}
	}
	return sent
}

// Run makes ticks at a rate per second, from 1 to 1000, until ctx ends: an Update, the
// game's turn, and a Flush. turn, which may be nil, gets the time of the Update and
// the number of the tick, from 1 on, and alone may use the driver. A late tick is made
// once.
//
// It returns ctx.Err(), or the error of Update. The caller closes the driver.
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

// State is where a connection stands, with the values of Netcode for Entities.
type State uint8

// The states, in the order in which a connection passes them.
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
	// StateStalled and StateResumed are of events alone: a connected peer sends nothing for four
	// times Timeouts.Heartbeat, and then it does again.
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

// Flush is the second half of a tick: it sends what is queued.
func (d *Driver) Flush() {
	if d.ep != nil && !d.closed {
		d.flush()
	}
}

func (d *Driver) flush() {
	for _, s := range d.sessions.list {
		s.rpcs.flush()
		s.commands.flush()
		s.snapshots.flush()
	}
	d.ep.Flush()
	for to, data, ok := d.ep.Next(); ok; to, data, ok = d.ep.Next() {
		_ = d.link.Send(to, data) // An error is as if the network had lost it.
	}
	d.releases.flush(func(at address.Addr) {
		if !d.sessions.hasPeer(at) {
			d.link.Disconnect(at)
		}
	})
	d.link.Flush()
}

// Update is the first half of a tick: it takes what arrived, ends what waited too long, and
// publishes what happened. A time before that of the last Update counts as the same.
//
// It returns why the link has ended, after which nothing arrives any more; net.ErrClosed after Close.
func (d *Driver) Update(now time.Time) error {
	if d.closed {
		return net.ErrClosed
	}
	d.clock.advance(now)
	d.forget()
	if d.ep != nil {
		d.link.Advance(now)
		d.ep.Advance(d.clock.elapsed)
		d.receive()
		d.ep.Update()
		for _, s := range d.sessions.list {
			s.serve()
		}
		d.takeEvents()
		orderEvents(d.events, d.server)
	}
	return d.err
}

func (d *Driver) forget() {
	d.ids.age()
	clear(d.events)
	d.events = d.events[:0]
	for _, s := range d.sessions.list {
		s.forget()
	}
}

func (d *Driver) receive() {
	for range maxReceive {
		ev := d.link.Receive(d.buf)
		switch ev.Kind {
		case link.Nothing:
			return
		case link.Datagram:
			d.ep.Receive(ev.Addr, d.buf[:ev.N])
		case link.Joined:
			// The last request may have had no link to go over.
			if s := d.sessions.attempt(ev.Addr); s != nil {
				d.ep.RetryConnect(s.conn)
			}
		case link.Left:
			d.peerLeft(ev.Addr, ev.Err)
		case link.Refused:
			d.log.Warn("the link refused", "error", ev.Err)
			d.sessions.dropPeers(ev.Err)
		case link.Ended:
			d.err = ev.Err
			d.log.Error("the link ended", "error", ev.Err)
			d.sessions.dropPeers(ev.Err)
			return
		}
	}
}

func (d *Driver) takeEvents() {
	for ev, ok := d.ep.NextEvent(); ok; ev, ok = d.ep.NextEvent() {
		if ev.Kind == utp.EventIncoming {
			if d.ep.State(ev.Conn) != utp.StateNone { // The client, which has proven its address, has not left meanwhile.
				d.sessions.begin(d, ev.Conn, StateUnknown).begin()
			}
			continue
		}
		s := d.sessions.get(ev.Conn)
		switch {
		case s == nil:
		case s.closing.lingering:
			if ev.Kind == utp.EventDisconnected { // The peer has read the notice.
				d.releases.add(s.closing.at)
				s.forgetTransport()
			}
		case !s.live():
		case ev.Kind == utp.EventConnected:
			s.begin()
		case ev.Kind == utp.EventData:
			s.message(ev.Pipeline, ev.Data)
		case ev.Kind == utp.EventDisconnected:
			s.transportEnded(ev)
		}
	}
}

// maxDials is how often one attempt to connect asks the link for its peer again.
const maxDials = 3

// peerLeft keeps the attempt of a client that connects again at once and sees the
// link of its former connection end, which the host closes some flushes later.
func (d *Driver) peerLeft(at address.Addr, cause error) {
	s := d.sessions.attempt(at)
	if s == nil || s.handshake.dials == maxDials || d.link.Dial() != nil {
		d.ep.DropPeer(at, cause)
		return
	}
	s.handshake.dials++
	for _, old := range d.sessions.list {
		if old.closing.lingering && old.closing.at == at {
			old.closeTransport() // Its notice has no way any more.
		}
	}
}

// Close ends every connection, with what Disconnect was given if that was called. It sends
// what is queued and one notice, without waiting for an answer, and closes the link.
// It may be called again. Errors are those of the link.
func (d *Driver) Close() error {
	if d.closed {
		return nil
	}
	d.closed = true
	d.forget()
	if d.link == nil {
		return nil
	}
	for _, s := range d.sessions.list {
		switch {
		case !s.live():
		case s.closing.requested:
			s.close(s.closing.reason, s.closing.text, nil)
		default:
			s.close(ReasonConnectionClose, "", nil)
		}
	}
	d.flush()
	for _, s := range d.sessions.list {
		if s.closing.lingering {
			s.closeTransport()
		}
	}
	d.ep.Listen(false)
	for range releaseFlushes {
		d.flush()
	}
	return d.link.Close()
}
