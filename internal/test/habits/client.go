package habits

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// Status is the state of a client's relay connection.
type Status uint8

const (
	// Unbound clients send BINDs.
	Unbound Status = iota
	// Bound clients had a BIND_RECEIVED.
	Bound
	// Failed clients have lost their allocation: the game is over.
	Failed
)

// Credentials are the part of an allocation that a client uses.
type Credentials struct {
	ID             [16]byte
	Key            []byte // 64 bytes
	ConnectionData []byte // 255 bytes
	Ticket         []byte // the host's connection data for this player, 255 bytes; nil: this is a host
}

// Client is the relay layer of one client. It has no clock and no socket: its owner
// calls its methods, with a time since any moment, and it sends by a function. It is not
// safe for concurrent use.
type Client struct {
	Kind  Kind
	Cred  Credentials
	Retry time.Duration // between BINDs, and between CONNECT_REQUESTs
	Ping  time.Duration // without sending, before a PING

	Status     Status
	Nonce      uint16 // of the next BIND
	Binds      int    // BINDs sent
	Connecting bool   // a joiner that wants its host
	Left       bool   // its connection was closed: a driver connects once
	Peers      [][16]byte

	send         func(pkt []byte)
	buf          []byte // for the next message
	lastBind     time.Duration
	lastSent     time.Duration
	lastReceived time.Duration
	lastConnect  time.Duration
}

// never is before every time.
const never = -1 << 62

// New returns a client with the default times of Unity Transport. send must not keep its
// argument.
func New(kind Kind, cred Credentials, send func(pkt []byte)) Client {
	return Client{
		Kind: kind, Cred: cred, Retry: time.Second, Ping: 3 * time.Second, send: send, Connecting: cred.Ticket != nil,
		lastBind: never, lastConnect: never,
	}
}

// Connect begins to ask for the host, also after the connection was closed.
func (c *Client) Connect() {
	c.Connecting, c.Left, c.lastConnect = true, false, never
}

// Update sends what is due. A client calls it in each frame.
func (c *Client) Update(now time.Duration) {
	switch c.Status {
	case Unbound:
		if now-c.lastBind <= c.Retry {
			return
		}
		if c.Kind.MaxBinds > 0 && c.Binds == c.Kind.MaxBinds {
			c.Status = Failed
			return
		}
		c.bind(now)
		if c.Kind.RaisesNonce {
			c.Nonce++
		}
	case Bound:
		if now-c.lastSent > c.Ping {
			c.Send(now, append(c.message(2, c.Cred.ID), 1, 0))
		}
		if now-c.lastReceived > silentPings*c.Ping {
			c.bind(now) // With the nonce that it has.
			c.lastReceived = now
		}
		if c.Connecting && !c.Left && len(c.Peers) == 0 && now-c.lastConnect >= c.Retry {
			c.lastConnect = now
			pkt := append(c.message(3, c.Cred.ID), byte(len(c.Cred.Ticket)))
			c.Send(now, append(pkt, c.Cred.Ticket...))
		}
	}
}

// silentPings is how many PING periods the relay may be silent before another BIND.
const silentPings = 3

// Heard starts the clock of the relay's silence.
func (c *Client) Heard(now time.Duration) { c.lastReceived = now }

// Send sends a message of the game.
func (c *Client) Send(now time.Duration, pkt []byte) {
	c.lastSent = now
	c.buf = pkt[:0]
	c.send(pkt)
}

// Relay sends content to a peer.
func (c *Client) Relay(now time.Duration, to [16]byte, content []byte) {
	pkt := binary.BigEndian.AppendUint16(c.message(10, c.Cred.ID, to), uint16(len(content)))
	c.Send(now, append(pkt, content...))
}

// Rebind sends a BIND with the next nonce.
func (c *Client) Rebind(now time.Duration) {
	c.Nonce++
	c.bind(now)
}

func (c *Client) bind(now time.Duration) {
	c.Binds++
	c.lastBind = now
	c.Send(now, c.Cred.Bind(c.Nonce))
}

// Bind returns a signed BIND.
func (c *Credentials) Bind(nonce uint16) []byte {
	pkt := append([]byte{0xDA, 0x72, 0, 0, 0, byte(nonce), byte(nonce >> 8), 255}, c.ConnectionData...)
	mac := hmac.New(sha256.New, c.Key)
	mac.Write(pkt)
	return mac.Sum(pkt)
}

func (c *Client) message(t byte, ids ...[16]byte) []byte {
	pkt := append(c.buf[:0], 0xDA, 0x72, 0, t)
	for i := range ids {
		pkt = append(pkt, ids[i][:]...)
	}
	return pkt
}

// Malformed returns what is wrong with a message of a relay; "": nothing.
func Malformed(pkt []byte) string {
	if len(pkt) < 4 || pkt[0] != 0xDA || pkt[1] != 0x72 || pkt[2] != 0 {
		return "bad header"
	}
	sizes := [...]int{1: 4, 2: 22, 6: 36, 8: 36, 9: 36, 12: 21}
	switch t := int(pkt[3]); {
	case t == 10 && (len(pkt) < 38 || int(binary.BigEndian.Uint16(pkt[36:])) != len(pkt)-38):
		return "bad length of a RELAY"
	case t == 10:
	case t >= len(sizes) || sizes[t] == 0:
		return fmt.Sprintf("type %d, which no relay sends", t)
	case len(pkt) != sizes[t]:
		return fmt.Sprintf("type %d with %d bytes, want %d", t, len(pkt), sizes[t])
	}
	return ""
}

// Handle takes a message of the relay, which must not be [Malformed], as a client of
// that kind does.
func (c *Client) Handle(now time.Duration, pkt []byte) {
	c.lastReceived = now
	switch pkt[3] {
	case 1:
		c.Status = Bound
	case 6:
		if from, to := [16]byte(pkt[4:20]), [16]byte(pkt[20:36]); to == c.Cred.ID && c.Connecting && !c.Left && len(c.Peers) == 0 {
			c.Peers = append(c.Peers, from)
		}
	case 8:
		if c.Kind.TakesClosing {
			c.Status = Failed
		}
	case 9:
		if c.Kind.TakesClosing && [16]byte(pkt[20:36]) == c.Cred.ID {
			c.closed([16]byte(pkt[4:20]))
		}
	case 10:
		c.handleRelay(now, pkt)
	case 12:
		c.handleError(now, pkt[20])
	}
}

// handleRelay takes a RELAY. A host learns of a player by its first one.
func (c *Client) handleRelay(now time.Duration, pkt []byte) {
	from := [16]byte(pkt[4:20])
	known := slices.Contains(c.Peers, from)
	switch {
	case [16]byte(pkt[20:36]) != c.Cred.ID, c.Left:
	case string(pkt[38:]) == TransportDisconnect:
		if known {
			c.Send(now, c.message(9, c.Cred.ID, from))
			c.closed(from)
		}
	case !known:
		c.Peers = append(c.Peers, from)
	}
}

func (c *Client) handleError(now time.Duration, code byte) {
	switch code {
	case 1, 4:
		c.Status = Failed
	case 3:
		if c.Kind.RaisesNonce && c.Status != Failed {
			c.Rebind(now)
		}
	}
}

// TransportDisconnect stands for the transport's own disconnect message inside a RELAY.
const TransportDisconnect = "\x02goodbye"

// Leave closes the connection to a peer: the transport's own disconnect inside a RELAY,
// and then DISCONNECT, unless the driver is disposed at once.
func (c *Client) Leave(now time.Duration, peer [16]byte, disposed bool) {
	c.Relay(now, peer, []byte(TransportDisconnect))
	c.closed(peer)
	if !disposed {
		c.Send(now, c.message(9, c.Cred.ID, peer))
	}
}

// closed is the end of a connection.
func (c *Client) closed(peer [16]byte) {
	c.Forget(peer)
	c.Left = c.Left || c.Connecting
}

// Forget drops a peer.
func (c *Client) Forget(peer [16]byte) {
	c.Peers = slices.DeleteFunc(c.Peers, func(p [16]byte) bool { return p == peer })
}
