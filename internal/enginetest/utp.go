package enginetest

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
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

// The generations. UTP1 checks exact lengths, takes datagrams only from the
// address it sends to, never changes its nonce and only logs ERROR 3. UTP2
// counts its nonce up, answers ERROR 3 with a new BIND and takes DISCONNECT.
// Both bind again, with the nonce that they have, after three silent PING
// periods (1.x since 1.3.4).
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
	status          Status
	nonce           uint16
	binds           int
	lastBind        time.Time
	lastSent        time.Time
	lastReceived    time.Time
	connecting      bool // Connect was called
	lastConn        time.Time
	peers           [][16]byte
	inbox           []Message
	logged          []string // the lines of the game's log
	violation       string   // a datagram that a relay must never send
	paused          bool
	quiet           bool
	pendingRequests int // CONNECT_REQUESTs that no ACCEPTED has answered
	echoes          int // PINGs that the relay has answered
}

// NewUTP opens a client's socket on the loopback address of its relay.
func NewUTP(v Version, cred Credentials) (*UTP, error) {
	u := &UTP{Version: v, Cred: cred, Retry: time.Second, PingPeriod: 3 * time.Second, status: NotEstablished}
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
			u.update(time.Now())
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
		u.handle(time.Now(), slices.Clone(buf[:n]), netip.AddrPortFrom(from.Addr().Unmap(), from.Port()))
		u.mu.Unlock()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.conn.Close()
}

// update sends the messages that are due.
func (u *UTP) update(now time.Time) {
	switch u.status {
	case NotEstablished:
		if now.Sub(u.lastBind) > u.Retry {
			if u.Version == UTP2 && u.binds == 60 {
				u.status = Invalid
				return
			}
			u.bind(now)
			if u.Version == UTP2 {
				u.nonce++
			}
		}
	case Established:
		if now.Sub(u.lastSent) > u.PingPeriod {
			u.send(now, append(message(2, u.Cred.ID[:]), 1, 0))
		}
		if now.Sub(u.lastReceived) > 3*u.PingPeriod {
			u.bind(now) // The stored nonce, and it stays.
			u.lastReceived = now
		}
		if u.connecting && len(u.peers) == 0 && now.Sub(u.lastConn) >= u.Retry {
			u.lastConn = now
			u.pendingRequests++
			u.send(now, append(append(message(3, u.Cred.ID[:]), 255), u.Cred.HostConnectionData...))
		}
	}
}

func (u *UTP) bind(now time.Time) {
	u.binds++
	u.lastBind = now
	u.send(now, SignedBind(u.Cred, u.nonce))
}

// SignedBind returns the BIND that a client with these credentials sends.
func SignedBind(c Credentials, nonce uint16) []byte {
	pkt := append([]byte{0xDA, 0x72, 0, 0, 0, byte(nonce), byte(nonce >> 8), 255}, c.ConnectionData...)
	mac := hmac.New(sha256.New, c.Key)
	mac.Write(pkt)
	return mac.Sum(pkt)
}

func (u *UTP) send(now time.Time, pkt []byte) {
	u.lastSent = now
	u.conn.WriteToUDPAddrPort(pkt, u.Cred.Relay)
}

// Inject sends bytes as they are from the client's socket.
func (u *UTP) Inject(pkt []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.conn.WriteToUDPAddrPort(pkt, u.Cred.Relay)
}

func message(t byte, ids ...[]byte) []byte {
	pkt := []byte{0xDA, 0x72, 0, t}
	for _, id := range ids {
		pkt = append(pkt, id...)
	}
	return pkt
}

// handle checks one datagram as strictly as the client of that version does.
func (u *UTP) handle(now time.Time, pkt []byte, from netip.AddrPort) {
	if u.Version == UTP1 && from != u.Cred.Relay {
		u.violation = fmt.Sprintf("datagram from %v, not from %v", from, u.Cred.Relay)
		return
	}
	if len(pkt) < 4 || pkt[0] != 0xDA || pkt[1] != 0x72 || pkt[2] != 0 {
		u.violation = fmt.Sprintf("bad header %x", pkt)
		return
	}
	u.lastReceived = now
	exact := map[byte]int{1: 4, 2: 22, 6: 36, 8: 36, 9: 36, 12: 21}
	if want, ok := exact[pkt[3]]; ok && len(pkt) != want {
		u.violation = fmt.Sprintf("type %d with %d bytes, want %d", pkt[3], len(pkt), want)
		return
	}
	switch pkt[3] {
	case 1:
		u.status = Established
	case 2:
		if string(pkt[4:20]) != string(u.Cred.ID[:]) {
			u.violation = "PING of another allocation"
		}
		u.echoes++
	case 6:
		u.handleAccepted(pkt)
	case 8:
		if u.Version == UTP2 {
			u.logged = append(u.logged, "limit of players reached")
			u.status = Invalid
		}
	case 9:
		if u.Version == UTP2 && string(pkt[20:36]) == string(u.Cred.ID[:]) {
			u.forget([16]byte(pkt[4:20]))
		}
	case 10:
		u.handleRelay(pkt)
	case 12:
		u.handleError(now, pkt[20])
	default:
		u.violation = fmt.Sprintf("a relay sent type %d", pkt[3])
	}
}

func (u *UTP) handleAccepted(pkt []byte) {
	answer := u.pendingRequests > 0
	if answer {
		u.pendingRequests--
	}
	if !u.connecting {
		if !answer {
			u.violation = "ACCEPTED without a CONNECT_REQUEST"
		}
		return // The client has left since its CONNECT_REQUEST.
	}
	if string(pkt[20:36]) != string(u.Cred.ID[:]) {
		u.violation = "ACCEPTED for another client"
	}
	if len(u.peers) == 0 {
		u.peers = append(u.peers, [16]byte(pkt[4:20]))
	}
}

// handleRelay handles a RELAY. A host learns of a player by its first one.
func (u *UTP) handleRelay(pkt []byte) {
	if len(pkt) < 38 || int(binary.BigEndian.Uint16(pkt[36:])) != len(pkt)-38 || string(pkt[20:36]) != string(u.Cred.ID[:]) {
		u.violation = fmt.Sprintf("bad RELAY %x", pkt[:min(len(pkt), 38)])
		return
	}
	from := [16]byte(pkt[4:20])
	content := string(pkt[38:])
	if !slices.Contains(u.peers, from) {
		u.peers = append(u.peers, from)
	}
	u.inbox = append(u.inbox, Message{from, content})
	if content == transportDisconnect { // The peer's transport disconnects.
		u.forget(from)
		u.send(time.Now(), message(9, u.Cred.ID[:], from[:]))
	}
}

func (u *UTP) handleError(now time.Time, code byte) {
	switch code {
	case 1, 4:
		u.status = Invalid
	case 3:
		if u.Version == UTP2 && u.status != Invalid {
			u.nonce++
			u.bind(now)
		}
	}
	u.logged = append(u.logged, fmt.Sprintf("error %d", code))
}

func (u *UTP) forget(peer [16]byte) {
	u.peers = slices.DeleteFunc(u.peers, func(p [16]byte) bool { return p == peer })
}

// transportDisconnect stands for the transport's own disconnect message inside a RELAY.
const transportDisconnect = "\x02goodbye"
