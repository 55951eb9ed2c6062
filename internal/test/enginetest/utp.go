package enginetest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/test/habits"
)

// Credentials are the part of an Allocations API response that a player uses.
type Credentials struct {
	Relay              netip.AddrPort
	ID                 [16]byte
	Key                []byte // 64 bytes
	ConnectionData     []byte // 255 bytes
	HostConnectionData []byte // 255 bytes; a host's own
}

// Version is a generation of the real client.
type Version int

// The generations: habits.UTP1 and habits.UTP27. UTP1 takes datagrams only from the
// address it sends to.
const (
	UTP1 Version = 1
	UTP2 Version = 2
)

// Status is the state of the relay connection in the game.
type Status string

// The statuses. Invalid is the end of the game session.
const (
	NotEstablished Status = "not established"
	Established    Status = "established"
	Invalid        Status = "allocation invalid"
)

// Message is the content of a received RELAY.
type Message struct {
	From    [16]byte
	Content string
}

// UTP is a strict model of a real client's relay layer. Its methods may be
// called from the test's goroutine while Run runs.
type UTP struct {
	Version    Version
	Cred       Credentials
	Retry      time.Duration // between BINDs and CONNECT_REQUESTs; 0: 1 s
	PingPeriod time.Duration // 0: 3 s

	mu              sync.Mutex
	conn            *net.UDPConn
	client          habits.Client
	began           time.Time
	inbox           []Message
	logged          []string // the lines of the game's log
	violation       string   // a datagram that a relay must never send
	paused          bool
	quiet           bool
	pendingRequests int // CONNECT_REQUESTs that no ACCEPTED has answered
}

// NewUTP opens a client's socket on the loopback address of its relay.
func NewUTP(v Version, cred Credentials) (*UTP, error) {
	u := &UTP{Version: v, Cred: cred, Retry: time.Second, PingPeriod: 3 * time.Second, began: time.Now()}
	kind := habits.UTP1()
	if v == UTP2 {
		kind = habits.UTP27()
	}
	u.client = habits.New(kind, cred.habits(), u.send)
	u.client.Connecting = false // until Connect
	return u, u.ChangePort()
}

// ChangePort moves the client to a new port, as a network change does.
func (u *UTP) ChangePort() error {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: u.Cred.Relay.Addr().AsSlice()})
	if err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn != nil {
		u.conn.Close()
	}
	u.conn = conn
	return nil
}

// SwapSocket exchanges the client's socket for another and returns the old one, so
// that a test can bring it back to its old port.
func (u *UTP) SwapSocket(conn *net.UDPConn) *net.UDPConn {
	u.mu.Lock()
	defer u.mu.Unlock()
	old := u.conn
	u.conn = conn
	return old
}

// Run plays the client until ctx ends and then closes its socket. Like a game
// that quits, it sends nothing to the relay.
func (u *UTP) Run(ctx context.Context) {
	buf := make([]byte, 2048)
	for ctx.Err() == nil {
		u.mu.Lock()
		conn, paused := u.conn, u.paused
		if !paused && !u.quiet {
			u.client.Retry, u.client.Ping = u.Retry, u.PingPeriod
			u.client.Update(u.now())
		}
		u.mu.Unlock()
		if paused {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			continue
		}
		u.mu.Lock()
		u.handle(slices.Clone(buf[:n]), netip.AddrPortFrom(from.Addr().Unmap(), from.Port()))
		u.mu.Unlock()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.conn.Close()
}

// now is the time of the client.
func (u *UTP) now() time.Duration { return time.Since(u.began) }

// send sends a message of the client.
func (u *UTP) send(pkt []byte) {
	if pkt[3] == 3 {
		u.pendingRequests++
	}
	u.conn.WriteToUDPAddrPort(pkt, u.Cred.Relay)
}

func (c *Credentials) habits() habits.Credentials {
	return habits.Credentials{ID: c.ID, Key: c.Key, ConnectionData: c.ConnectionData, Ticket: c.HostConnectionData}
}

// SignedBind returns the BIND that a client with these credentials sends.
func SignedBind(c Credentials, nonce uint16) []byte {
	cred := c.habits()
	return cred.Bind(nonce)
}

// Inject sends bytes as they are from the client's socket.
func (u *UTP) Inject(pkt []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.conn.WriteToUDPAddrPort(pkt, u.Cred.Relay)
}

// handle checks one datagram as strictly as the client of that version does.
func (u *UTP) handle(pkt []byte, from netip.AddrPort) {
	if from.Port() != u.Cred.Relay.Port() {
		return // A client of another test sent it to a relay that had this port before.
	}
	if u.Version == UTP1 && from != u.Cred.Relay {
		u.violation = fmt.Sprintf("datagram from %v, not from %v", from, u.Cred.Relay)
		return
	}
	if why := habits.Malformed(pkt); why != "" {
		u.violation = fmt.Sprintf("%s: %x", why, pkt[:min(len(pkt), 38)])
		return
	}
	switch pkt[3] {
	case 2:
		if [16]byte(pkt[4:20]) != u.Cred.ID {
			u.violation = "PING of another allocation"
		}
	case 6:
		u.checkAccepted(pkt)
	case 8:
		if u.Version == UTP2 {
			u.logged = append(u.logged, "limit of players reached")
		}
	case 10:
		if [16]byte(pkt[20:36]) != u.Cred.ID {
			u.violation = fmt.Sprintf("RELAY of another client, from %v: %x", from, pkt)
			return
		}
		u.inbox = append(u.inbox, Message{[16]byte(pkt[4:20]), string(pkt[38:])})
	case 12:
		u.logged = append(u.logged, fmt.Sprintf("error %d", pkt[20]))
	}
	u.client.Handle(u.now(), pkt)
}

func (u *UTP) checkAccepted(pkt []byte) {
	answer := u.pendingRequests > 0
	if answer {
		u.pendingRequests--
	}
	switch {
	case !u.client.Connecting: // The client has left since its CONNECT_REQUEST.
		if !answer {
			u.violation = "ACCEPTED without a CONNECT_REQUEST"
		}
	case [16]byte(pkt[20:36]) != u.Cred.ID:
		u.violation = "ACCEPTED for another client"
	}
}
