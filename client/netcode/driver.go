package netcode

import (
	"errors"
	"iter"
	"log/slog"
	"net"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/client/netcode/utp"
)

// Driver is a server with its clients, or a client with its server. One
// goroutine owns it; there is none inside.
type Driver struct {
	cfg     Config
	server  bool
	log     *slog.Logger
	table   rpcTable
	version ProtocolVersion

	link   link.Link     // nil before it is needed
	ep     *utp.Endpoint // there when link is
	err    error         // why the link ended
	closed bool

	started bool
	last    time.Time     // the caller's clock at the last Update
	elapsed time.Duration // the driver's own

	sessions    []*session // by slot of the transport
	handshaking int
	ids         networkIDs
	partings    []parting
	events      []ConnectionEvent
	listens     []*ListenRequest
	connects    []*ConnectRequest
	autoListen  *ListenRequest
	autoConnect *ConnectRequest

	buf     []byte // of the datagram that is received
	scratch []byte // of the message that is sent
	counts  driverCounts
}

// NewServer returns a server that does not listen yet. Errors wrap ErrConfig or
// utp.ErrConfig; the link remains the caller's then.
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
	d.version = ProtocolVersion{
		Protocol: Protocol, Game: cfg.GameVersion, RPCs: d.table.fingerprint(), Components: cfg.ComponentsHash,
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
	if err != nil {
		return err
	}
	d.link, d.ep = l, ep
	d.ep.Advance(d.elapsed)
	return nil
}

// open makes the link if there is none.
func (d *Driver) open(local address.Addr) error {
	switch {
	case d.closed:
		return net.ErrClosed
	case d.err != nil:
		return d.err
	case d.link != nil:
		return nil
	}
	l, err := d.cfg.Open(local)
	if err != nil {
		return err
	}
	if err := d.attach(l); err != nil {
		return errors.Join(err, l.Close())
	}
	return nil
}

// Listen begins to accept clients. Nowhere means wherever the link is; another
// address must be the link's, or that of the link that Config.Open makes.
//
// Errors: ErrNotServer, ErrAlreadyListening, ErrAddr, and those of Config.Open.
// A server that failed may be told again.
func (d *Driver) Listen(at address.Addr) error {
	if !d.server {
		return ErrNotServer
	}
	if d.Listening() {
		return ErrAlreadyListening
	}
	if at.IsValid() && d.link != nil && d.link.Local() != at {
		return ErrAddr
	}
	if err := d.open(at); err != nil {
		return err
	}
	d.ep.Listen(true)
	d.log.Info("listening", "at", d.link.Local())
	return nil
}

// Listening reports whether clients are accepted.
func (d *Driver) Listening() bool { return d.ep != nil && d.ep.Listening() }

// SetRequireApproval changes Config.RequireApproval. Errors: ErrNotServer,
// ErrAlreadyListening.
func (d *Driver) SetRequireApproval(on bool) error {
	if !d.server {
		return ErrNotServer
	}
	if d.Listening() {
		return ErrAlreadyListening
	}
	d.cfg.RequireApproval = on
	return nil
}

// Connect begins to connect to a server; StateConnecting is an event of the
// next Update.
//
// Errors: ErrNotClient, ErrAlreadyConnecting, ErrPortZero, ErrAddr, and those of
// Config.Open, of the link, and of Config.Rand.
func (d *Driver) Connect(to address.Addr) (Conn, error) {
	if d.server {
		return Conn{}, ErrNotClient
	}
	if d.busy() {
		return Conn{}, ErrAlreadyConnecting
	}
	switch {
	case !to.IsValid():
		return Conn{}, ErrAddr
	case !to.Reachable():
		return Conn{}, ErrPortZero
	}
	if err := d.open(address.Addr{}); err != nil {
		return Conn{}, err
	}
	if err := d.link.Dial(); err != nil {
		return Conn{}, err
	}
	id, err := d.ep.Connect(to, nil)
	if err != nil {
		return Conn{}, err
	}
	s := d.newSession(id, StateConnecting)
	s.unsaid = true
	return Conn{d, id}, nil
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

// Link returns the link, nil before it was opened. Wrapping it is for before
// NewServer and NewClient; this one is for its address and its counters.
func (d *Driver) Link() link.Link { return d.link }

// Version returns what the peer must have, too.
func (d *Driver) Version() ProtocolVersion { return d.version }

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
func (d *Driver) millis() uint32 { return uint32(d.elapsed/time.Millisecond) + 1 }
