package websocket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	ws "github.com/coder/websocket"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/base/origin"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

// errAlreadyRun is returned by the second call of [Transport.Run].
var errAlreadyRun = errors.New("websocket: the transport has been run already")

// Transport serves the relay protocol over WebSocket. It implements
// [engine.Transport] and [net/http.Handler]. Any goroutine may call its methods.
type Transport struct {
	cfg       Config
	origins   origin.List // of pages that may connect
	buffers   sync.Pool   // of *[corkSize]byte
	serial    atomic.Uint64
	started   atomic.Bool
	running   chan struct{} // closed when Run accepts connections
	admission admission
	banned    atomic.Pointer[endpoint.PrefixSet]
	shards    [numShards]shard
	counts    counters
	linked    linked // see handover.go
}

// numShards is large enough that workers seldom contend for a lock.
const numShards = 64

// shard holds the connections whose serials are equal modulo numShards, a power of two.
type shard struct {
	mu    sync.RWMutex // guards conns
	conns map[uint64]*conn
	_     [32]byte // keeps the locks of two shards out of one cache line
}

// New returns a transport that accepts connections once Run is called. It fails
// if a field of the configuration is out of range.
func New(cfg Config) (*Transport, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	t := &Transport{cfg: cfg, origins: origin.List{}, running: make(chan struct{})}
	if cfg.AllowOrigins == nil || len(cfg.AllowOrigins) > 0 {
		t.origins, _ = origin.NewList(cfg.AllowOrigins) // valid
	}
	t.buffers.New = func() any { return new([corkSize]byte) }
	t.admission = admission{maxTotal: cfg.MaxConns, maxPerAddress: cfg.MaxConnsPerAddress, perAddress: make(map[netip.Prefix]int)}
	for i := range t.shards {
		t.shards[i].conns = make(map[uint64]*conn)
	}
	return t, nil
}

// Name returns Config.Name, see [engine.Transport].
func (t *Transport) Name() string { return t.cfg.Name }

// Run accepts connections until ctx is done, then closes all of them. It returns
// when all are closed: after 2 s at most, and a little more for a
// connection that the http.Server is opening at that moment. A second call
// returns errAlreadyRun.
func (t *Transport) Run(ctx context.Context, in engine.Intake) error {
	if !t.started.CompareAndSwap(false, true) {
		return errAlreadyRun
	}
	t.admission.start(in)
	var links sync.WaitGroup
	links.Go(func() { t.serveLinks(in) })
	close(t.running)
	<-ctx.Done()
	if t.linked.to.Load() != nil {
		links.Wait()
		return nil // Hold goes on.
	}
	t.admission.stop()
	t.closeLinks()
	t.endAll(endStopped)
	t.admission.conns.Wait()
	links.Wait()
	return nil
}

func (t *Transport) endAll(why end) {
	for i := range t.shards {
		for _, c := range t.shards[i].snapshot() {
			c.end(why)
		}
	}
}

// Running returns a channel that is closed when Run accepts connections.
func (t *Transport) Running() <-chan struct{} { return t.running }

// MaxMessage returns the size of the largest message that is sent, see [engine.Transport].
func (t *Transport) MaxMessage() int { return t.cfg.maxOutgoing }

// Send queues a message for a connection. It copies pkt and never blocks. It
// reports false if the connection has ended or its queue is full. An ERROR with
// code 1 or 4 closes the connection after it is written. An empty message is not sent: it says
// that the connection still has an allocation, see [engine.Intake].
func (t *Transport) Send(serial uint64, pkt []byte) bool {
	c := t.find(serial)
	if c == nil {
		return t.sendHeld(serial, pkt)
	}
	if len(pkt) == 0 {
		c.sent.Store(true)
		return true
	}
	e, err := proto.ParseError(pkt)
	if err != nil {
		if len(pkt) == proto.HeaderLen {
			if _, err := proto.ParseBindReceived(pkt); err == nil {
				c.noteBound()
			}
		}
		return c.send(pkt)
	}
	if e.Code == proto.ErrorTimeout || e.Code == proto.ErrorNotFound {
		return c.sendFinal(pkt)
	}
	return c.sendError(pkt)
}

// IsOpen reports whether there is a connection with that serial, here or at a process before
// this one.
func (t *Transport) IsOpen(serial uint64) bool {
	return t.find(serial) != nil || t.isHeld(serial)
}

// ClientAddress returns the address of the client of a connection; invalid: not known, as behind a trusted
// proxy that does not tell it.
func (t *Transport) ClientAddress(serial uint64) (client netip.Addr) {
	if c := t.find(serial); c != nil {
		return c.place.client
	}
	t.linked.mu.RLock()
	defer t.linked.mu.RUnlock()
	for _, l := range t.linked.links {
		if client, ok := l.client(serial); ok {
			return client
		}
	}
	return client
}

func (t *Transport) drop(reason drop) bool {
	t.counts.dropped[reason].Add(1)
	return false
}

func (t *Transport) shard(serial uint64) *shard { return &t.shards[serial%numShards] }

// SetBannedSources makes the transport refuse connections from these networks, in place of those
// of the last call, and ends those that are open. The address of a client behind a proxy that
// does not tell it is not known.
func (t *Transport) SetBannedSources(all []netip.Prefix) {
	t.banned.Store(endpoint.NewPrefixSet(all))
	for i := range t.shards {
		for _, c := range t.shards[i].snapshot() {
			if t.isBanned(c.place.client) {
				c.end(endBanned)
			}
		}
	}
	t.eachHeld(func(l *link, serial uint64, client netip.Addr) {
		if t.isBanned(client) {
			l.forget(serial) // The process that keeps the connection ends it, since signs of life have no answer.
		}
	})
}

func (t private) ConnectionsFrom(network netip.Prefix) (n int) {
	for i := range t.shards {
		for _, c := range t.shards[i].snapshot() {
			if network.Contains(c.place.client) {
				n++
			}
		}
	}
	t.eachHeld(func(_ *link, _ uint64, client netip.Addr) {
		if network.Contains(client) {
			n++
		}
	})
	return n
}

func (t *Transport) isBanned(client netip.Addr) bool {
	return client.IsValid() && t.banned.Load().Contains(client)
}

func (t *Transport) find(serial uint64) *conn {
	s := t.shard(serial)
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.conns[serial]
}

func (t *Transport) add(c *conn) {
	s := t.shard(c.serial)
	s.mu.Lock()
	s.conns[c.serial] = c
	s.mu.Unlock()
	if reason := t.admission.noteOpen(c.place, c); reason != endNone {
		c.end(reason)
	}
	if t.isBanned(c.place.client) {
		c.end(endBanned) // since admission
	}
}

func (t *Transport) remove(c *conn) {
	s := t.shard(c.serial)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c.serial)
}

func (s *shard) snapshot() (conns []*conn) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, c := range s.conns {
		conns = append(conns, c)
	}
	return conns
}

// maxMessage is the size in bytes of the largest message that a connection may
// send: the largest message that the relay forwards.
const maxMessage = proto.RelayOverhead + proto.MaxContent

// defaultMaxOutgoing is a native client's limit: 1,400 less 14.
const defaultMaxOutgoing = 1386

// Config is the configuration of a [Transport]. The zero value of a field means
// its default. It must not be modified after New.
type Config struct {
	// Name is the name of the transport, see [engine.Transport]: a relay may have several. Default
	// "ws".
	Name string

	// MaxConns is the largest number of open connections. One more ends one that has
	// bound no allocation, of the network with most of these, or is refused. Default
	// 4,096.
	MaxConns int
	// MaxConnsPerAddress is the largest number of open connections from one IPv4
	// address or IPv6 /56. One more ends the oldest of them that has bound no
	// allocation, or is refused. Default 256; -1: MaxConns.
	MaxConnsPerAddress int
	// TrustedProxies are the networks of the reverse proxies whose header
	// X-Forwarded-For is used. Connections of a proxy that sends none count
	// towards MaxConns only; those with a header that cannot be parsed count as
	// the proxy's. Default: none.
	TrustedProxies []netip.Prefix
	// AllowOrigins are the origins of web pages that may connect, as
	// scheme://host, "null", or "*" for all. A client without an Origin header,
	// such as a native one, may always connect. Default: all.
	AllowOrigins []string

	// PingInterval is the time between checks of a connection: a bound one is pinged if
	// no message was received since the last check. A client that only answers pings
	// gives a sign of life within two intervals, which the engine's idle limit must
	// exceed. Default 3.3 s, a third of the engine's default.
	PingInterval time.Duration
	// IdleTimeout is the time after which a connection is closed to which nothing but
	// ERROR was sent, and that has no allocation. It should be longer than any idle
	// timeout of the engine. Default 2 minutes.
	IdleTimeout time.Duration

	// The rest is for tests.

	// maxOutgoing is the size in bytes of the largest message that is sent; the
	// engine drops larger ones. The package comment has the limits of the clients.
	maxOutgoing int
	// queueMessages and queueBytes limit the queue of one connection. A message
	// takes two bytes more than its size.
	queueMessages, queueBytes int
	// sendBuffer is the size in bytes of the kernel's send buffer of one
	// connection, which must be a *net.TCPConn or wrap one with a NetConn method.
	// A connection carries at most this size per round trip.
	sendBuffer int
	// pongTimeout is the time within which a client must answer a ping, or else
	// its connection is reset.
	pongTimeout time.Duration
	// writeTimeout is the time that one write may take, and that an overflowed
	// queue may take to become empty, before the connection is reset.
	writeTimeout time.Duration
	// closeTimeout is the time for a connection that is closed with a status: to
	// write the queued messages and to receive the answer.
	closeTimeout time.Duration
	// bindTimeout is the time after which a connection is closed if the relay has
	// not sent it BIND_RECEIVED.
	bindTimeout time.Duration
}

func (c Config) withDefaults() Config {
	c.Name = cmp.Or(c.Name, "ws")
	c.maxOutgoing = cmp.Or(c.maxOutgoing, defaultMaxOutgoing)
	c.queueMessages = cmp.Or(c.queueMessages, 256)
	c.queueBytes = cmp.Or(c.queueBytes, privateapi.WebSocketBytes/2)
	c.sendBuffer = cmp.Or(c.sendBuffer, privateapi.WebSocketBytes/2)
	c.MaxConns = cmp.Or(c.MaxConns, 4096)
	c.MaxConnsPerAddress = cmp.Or(c.MaxConnsPerAddress, 256)
	if c.MaxConnsPerAddress == -1 {
		c.MaxConnsPerAddress = c.MaxConns
	}
	c.PingInterval = cmp.Or(c.PingInterval, 10*time.Second/3)
	c.pongTimeout = cmp.Or(c.pongTimeout, 30*time.Second)
	c.writeTimeout = cmp.Or(c.writeTimeout, 5*time.Second)
	c.closeTimeout = cmp.Or(c.closeTimeout, 2*time.Second)
	c.bindTimeout = cmp.Or(c.bindTimeout, 10*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 2*time.Minute)
	return c
}

func (c *Config) validate() error {
	for name, value := range map[string]int{"MaxConns": c.MaxConns, "MaxConnsPerAddress": c.MaxConnsPerAddress} {
		if value < 1 || value > 1<<24 {
			return fmt.Errorf("websocket: Config.%s is %d, want 1 to %d", name, value, 1<<24)
		}
	}
	for name, value := range map[string]time.Duration{"PingInterval": c.PingInterval, "IdleTimeout": c.IdleTimeout} {
		if value <= 0 || value > 24*time.Hour {
			return fmt.Errorf("websocket: Config.%s is %v, want more than 0 and at most 24h", name, value)
		}
	}
	if i := slices.IndexFunc(c.TrustedProxies, func(p netip.Prefix) bool { return !p.IsValid() }); i >= 0 {
		return fmt.Errorf("websocket: Config.TrustedProxies[%d] is not a valid prefix", i)
	}
	if _, err := origin.NewList(c.AllowOrigins); err != nil {
		return fmt.Errorf("websocket: Config.AllowOrigins: %w", err)
	}
	return nil
}

// refusal is why a request was not upgraded.
type refusal uint8

const (
	// refusedNoUpgrade: status 426.
	refusedNoUpgrade refusal = iota
	// refusedHandshake: the handshake violates RFC 6455, or the server cannot
	// upgrade; status 400, 405, 426 or 501.
	refusedHandshake
	// refusedOrigin: status 403.
	refusedOrigin
	// refusedStopped: Run does not run; status 503.
	refusedStopped
	// refusedTotal: all are bound; status 503.
	refusedTotal
	// refusedAddress: all are bound; status 429.
	refusedAddress
	// refusedBanned: status 403.
	refusedBanned

	numRefusals
)

var refusalNames = [numRefusals]string{
	refusedNoUpgrade: "plain", refusedHandshake: "handshake", refusedOrigin: "origin",
	refusedStopped: "stopped", refusedTotal: "total", refusedAddress: "address", refusedBanned: "banned",
}

func (r refusal) String() string { return refusalNames[r] }

type drop uint8

const (
	// dropBusy: the relay was too busy for a received message.
	dropBusy drop = iota
	dropEmpty
	dropFull
	dropGone

	numDrops
)

var dropNames = [numDrops]string{
	dropBusy: "busy", dropEmpty: "empty", dropFull: "full", dropGone: "gone",
}

func (d drop) String() string { return dropNames[d] }

// end is why a connection ended. A number is the close status that the client gets.
type end uint8

const (
	endNone end = iota // it has not ended
	endPeer
	endLost
	endText
	endLarge
	endProtocol
	// endFinalError: ERROR 1 or 4 was sent; 1000.
	endFinalError
	// endUnbound: no BIND_RECEIVED was sent within 10 s; 1008.
	endUnbound
	// endIdle: nothing but ERROR was sent for Config.IdleTimeout, and there is no
	// allocation; 1000.
	endIdle
	endSlow
	endPing
	endStopped
	// endShed: it had bound no allocation, and another connection needed its place; a
	// reset.
	endShed
	endBanned
	// endFlood: more than maxUnbound messages before BIND_RECEIVED, or more than maxOverhead
	// besides messages; 1008.
	endFlood

	// numEnds includes an unused zero.
	numEnds
)

// ends has names in metrics. No close frame is sent if the status is zero.
var ends = [numEnds]struct {
	name   string
	status ws.StatusCode
	reason string
}{
	endNone:       {name: "none"},
	endPeer:       {name: "peer"},
	endLost:       {name: "lost"},
	endText:       {"text", ws.StatusUnsupportedData, "binary messages only"},
	endLarge:      {"large", ws.StatusMessageTooBig, "at most 1472 bytes"},
	endProtocol:   {"protocol", ws.StatusProtocolError, ""},
	endFinalError: {"last", ws.StatusNormalClosure, ""},
	endUnbound:    {"unbound", ws.StatusPolicyViolation, "no BIND"},
	endIdle:       {"idle", ws.StatusNormalClosure, "idle"},
	endSlow:       {name: "slow"},
	endPing:       {name: "ping"},
	endStopped:    {"stopped", ws.StatusGoingAway, "the relay stops"},
	endShed:       {name: "shed"},
	endBanned:     {"banned", ws.StatusPolicyViolation, "banned"},
	endFlood:      {"flood", ws.StatusPolicyViolation, "too much besides messages"},
}

func (e end) String() string { return ends[e].name }

// Stats are counts since [New].
type Stats struct {
	// Open is the number of open connections, Opened the number ever opened.
	Open   int
	Opened uint64
	// Received and ReceivedBytes count messages that were passed to the relay.
	Received, ReceivedBytes uint64
	// Sent and SentBytes count messages that were written, without frame headers.
	Sent, SentBytes uint64
	// Pings counts sent pings.
	Pings uint64
	// Refused counts requests that were not upgraded, Dropped dropped messages, and Ended ended
	// connections, by reason. All reasons are there, such as "origin", "full" and "slow".
	Refused, Dropped, Ended map[string]uint64
}

type counters struct {
	opened                  atomic.Uint64
	received, receivedBytes atomic.Uint64
	sent, sentBytes         atomic.Uint64
	pings                   atomic.Uint64
	refused                 [numRefusals]atomic.Uint64
	dropped                 [numDrops]atomic.Uint64
	ended                   [numEnds]atomic.Uint64
}

// Stats returns the counts.
func (t *Transport) Stats() Stats {
	c := &t.counts
	s := Stats{
		Open: t.admission.count(), Opened: c.opened.Load(),
		Received: c.received.Load(), ReceivedBytes: c.receivedBytes.Load(),
		Sent: c.sent.Load(), SentBytes: c.sentBytes.Load(), Pings: c.pings.Load(),
		Refused: make(map[string]uint64), Dropped: make(map[string]uint64), Ended: make(map[string]uint64),
	}
	for r := range numRefusals {
		s.Refused[r.String()] = c.refused[r].Load()
	}
	for d := range numDrops {
		s.Dropped[d.String()] = c.dropped[d].Load()
	}
	for e := endPeer; e < numEnds; e++ {
		s.Ended[e.String()] = c.ended[e].Load()
	}
	return s
}
